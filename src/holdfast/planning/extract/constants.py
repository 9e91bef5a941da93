"""Numbers of spilling and of the extract that no setting changes.

They were fitted or measured once and hold for every policy. ``holdfast policy show`` prints each with the text below
it.
"""

MAX_SCANNED_TOKENS = 200_000
"""Estimator tokens of the head that are searched for lines. It bounds the time that a compaction takes. Measured on
sessions of up to 800,000 tokens at a window of 64,000: 300,000 recall .3 % more of their facts and take a quarter
longer, 160,000 recall .4 % fewer."""
MAX_SCANNED_RESULT_TOKENS = 10_000
"""Estimator tokens of a result over which only the preview that the model was shown of it is searched for lines: a few
results of a megabyte would otherwise be all that ``MAX_SCANNED_TOKENS`` leaves room for. Measured on eleven recorded
sessions at a window of 32,000: .9454 of their facts are shown, .9424 with 20,000, .9431 with 5,000 and .9418 without a
limit, all at the same cost; in a run with results of up to 2 MB .91 in place of .54."""
MIN_LINE_WORTH = 0.001
"""Weight (``weigh_reference``) for each token that a quoted line must add. Tuned by replay: long sessions need many
lines again and short ones few, so a fixed share is too small for the former and too dear for the latter."""
SUMMARY_LEDGER_SHARE, SUMMARY_DECISION_SHARE, SUMMARY_POINTER_SHARE = 0.11, 0.03, 0.03
"""Shares of an extract for files and commands, for decisions, and for pointers to results worth reading again. Tuned by
replay together with ``summary.user_share``; what they leave unused goes to quoted lines, which recall more facts for
each token than any other section."""
MIN_SUMMARY_SHARE = 0.10
"""Share of the message budget under which an extract holds too little to be worth a compaction."""
SUMMARY_SLACK_SHARE = 0.01
"""Share of the message budget by which an extract may miss its own budget: its sections are sized line by line, and
the size of the joined text differs a little from the sum."""
MAX_QUOTED_LINE_CHARS = 130
"""Characters of a quoted line; a longer one is cut into pieces. Evidence needs some four words around a name, so whole
long lines would spend the budget on text that nobody asked for."""
MAX_OUTLINE_LINE_CHARS = 110
"""Characters of a line in the outline of a preview. Shorter than a quoted line because the text can be read back."""
MAX_OUTLINE_SCAN_CHARS, OUTLINE_SAMPLES = 1_000_000, 16
"""Characters of a text that an outline reads, and the number of places it reads where the text is longer. A million
characters cost some 0.2 s and 30 MB; sixteen places still show each part of a long log. Chosen by judgement."""
OUTLINE_CHARS_PER_BUDGET_TOKEN = 0.08
"""Characters that an outline has at most for each token of the message budget. In a small window outlines of many
results would crowd out the conversation. Chosen by judgement."""
MAX_JSON_CHARS = 8_000_000
"""Characters up to which a text beyond ASCII is tried as JSON: it must be encoded first, which copies it. Chosen by
judgement."""
RECALL_POINTER_CHARS = 50_000
"""Characters of a result that one pointer stands for: a single recall shows no more."""
HANDLE_CHARS = 12
"""Characters of a blob's hash that name it to the model: 48 bits, ambiguous once in millions of blobs."""
MAX_SMALL_TEXT_CHARS = 4_000
"""Characters up to which a spilled text leaves only a line: a preview would hardly be shorter than the text."""
MIN_REPLACEABLE_CHARS = 400
"""Characters under which a text is never replaced: the line about it would be as long."""
MAX_COMMAND_CHARS = 160
"""Characters of a command in the ledger. Longer commands are scripts, which stand in the log."""

AGE_DECAY_EXPONENT, IDLE_DECAY_EXPONENT = 0.65, 0.2
"""How fast a reference loses weight with the thousands of tokens since it last stood, and since it was last used.
Rounded from a logistic fit over some 90,000 references of three recorded sessions, each judged by the fit to the other
two."""
UNUSED_IDLE_KTOKENS = 40
"""Thousands of tokens since its last use that are assumed for a reference that the agent never used."""
SINGLE_USE_WEIGHT = 0.4
"""Factor for a reference that stood in one message only, written by the agent or the user: it is often spent."""
LIST_ITEM_WEIGHT = 2.0
"""Factor for a reference in a list item (a plan, a to-do, a requirement): these are needed about twice as often."""
REFERENCE_KIND_WEIGHTS = {"number": 0.3, "hex": 0.05, "url": 0.8, "file": 1.4, "kebab": 1.2}
"""Factor by kind of reference, 1.0 for the others: numbers and hashes are rarely used twice."""
