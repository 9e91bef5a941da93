"""Numbers of spilling and of the extract that no setting changes: fitted or measured once, for every policy."""

MAX_SCANNED_TOKENS = 160_000
"""Estimator tokens of the head that are searched for lines: nine of ten references that were needed again had last
stood within 30,000 (4,750 measured), so this is generous, and it bounds what a compaction costs."""
SUMMARY_LEDGER_SHARE, SUMMARY_DECISION_SHARE, SUMMARY_POINTER_SHARE = 0.11, 0.03, 0.07
"""Shares of an extract for files and commands, for decisions, and for pointers to results worth reading again: tuned
by replay together with ``summary.user_share``; what they leave over goes to quoted lines. [H]"""
MIN_SUMMARY_SHARE = 0.10
"""Share of the room under which an extract holds too little to be worth a compaction."""
SUMMARY_SLACK_SHARE = 0.01
"""Share of the room by which an extract may miss its budget."""
MAX_QUOTED_LINE_CHARS = 130
"""Characters of a quoted line; a longer one is cut into pieces. Evidence needs some four words around a name."""
MAX_OUTLINE_LINE_CHARS = 110
"""Characters of a line in the outline of a preview; the rest can be read back."""
MAX_OUTLINE_SCAN_CHARS, OUTLINE_SAMPLES = 1_000_000, 16
"""Characters of a text that an outline looks at, and at how many places where the text is longer. [H] A million cost
some 0.2 s and 30 MB."""
OUTLINE_CHARS_PER_BUDGET_TOKEN = 0.08
"""Characters that an outline has at most for each token of the message budget: in a small window it is shorter. [H]"""
MAX_JSON_CHARS = 8_000_000
"""Characters up to which a text beyond ASCII, which must be encoded for it, is tried as JSON. [H]"""
RECALL_POINTER_CHARS = 50_000
"""Characters of a result that one pointer stands for: what a single recall shows at most."""
HANDLE_CHARS = 12
"""Characters of a blob's hash that name it to the model: 48 bits, ambiguous once in millions of blobs."""
MAX_SMALL_TEXT_CHARS = 4_000
"""Characters up to which a spilled text leaves a line and no preview, which would be hardly shorter."""
MIN_REPLACEABLE_CHARS = 400
"""A text shorter than this gains nothing by giving way to a line about itself."""
MAX_COMMAND_CHARS = 160
"""A command is told in this many characters; longer ones are scripts whose text stands in the log."""

AGE_DECAY_EXPONENT, IDLE_DECAY_EXPONENT = 0.65, 0.2
"""How fast a reference loses weight with the thousands of tokens since it last stood, and was last used: rounded from
a logistic fit over some 90,000 references of three recorded sessions, each judged by the fit to the other two."""
UNUSED_IDLE_KTOKENS = 40
"""Thousands of tokens since the last use that a reference which was never used counts for."""
SINGLE_USE_WEIGHT = 0.4
"""Weight of a reference that stood in one message only, in the agent's own: it is often spent."""
LIST_ITEM_WEIGHT = 2.0
"""Weight of what stood in a list of points (a plan, a to-do, a requirement): needed about twice as often."""
REFERENCE_KIND_WEIGHTS = {"number": 0.3, "hex": 0.05, "url": 0.8, "file": 1.4, "kebab": 1.2}
"""Weight by kind, 1.0 for the others: numbers and hashes are rarely used twice."""
