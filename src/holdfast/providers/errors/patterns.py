"""Wordings of provider errors, as patterns by family.

All patterns are matched against normalized text: lower case, without quotes and links, numbers as plain digits
(``ErrorFacts.plain_text``), except ``STATED_DURATION``. Repetition is bounded throughout (``.{0,60}``), so that a long
text costs time in proportion to its length. ``error_rules`` decides in which order families are asked; a wording that
is missing here can mostly be added to its family without any other change.

The wordings in Chinese, Japanese, Korean, Russian and European languages are those of providers and gateways that
answer in them.
"""

from __future__ import annotations

import re


def _join_alternatives(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


_PROMPT_WORDS = r"(?:prompts?|inputs?|conversation|history|messages?|context|query|chat|session|thread|dialog(?:ue)?)"
_CONTEXT_EXTENT = r"(?:context|prompt|input)s?[ _-]?(?:lengths?|windows?|sizes?|limits?|len\b|capacity)"
_EXCEEDING_WORDS = (
    r"(?:exceed|too (?:long|large|big|many)|overflow|surpass|larger than|longer than|greater than|"
    r"bigger than|more than|beyond|is full|\breached\b|\babove\b|\bover\b|overrun|exhausted|used up|insufficient|"
    r"not enough|no room|not fit\b|(?:doesn|won|can|didn)t fit\b)"
)

OVERFLOW_CODE = re.compile(
    r"(?:context|prompt|input)(?:length|window|size|limit|"
    r"token)?s?(?:limit)?(?:is)?(?:exceed(?:ed|s)?|overflow(?:ed)?|toolong|toolarge)"
    r"|exceed(?:s|ed)?(?:max)?(?:context|prompt|input)|tokenslimitreached|max(?:imum)?(?:prompt|"
    r"context|input)(?:tokens|length)"
    r"(?:exceeded)?$|promptinputtoolong"
)
"""Normalized codes, and names of exceptions, for a prompt that is too long."""
OVERFLOW_NAME = re.compile(
    r"\b(?:\w{1,20}_)?(?:context|prompt|input)_(?:overflow|too_long|too_large)\b|"
    r"\b(?:model_|max_)?(?:context|prompt|input)_?(?:length|window|size|limit|"
    r"tokens?)_?(?:limit_?)?(?:exceeded|overflow)"
    r"(?:_?(?:error|exception))?\b|\bexceed_context_size_error\b|\btokens_limit_reached\b|"
    r"\bmodel_max_prompt_tokens_exceeded\b"
)
"""The same names as they are written inside of a text."""

AGENT_GUARD = _join_alternatives(
    r"context window(?: of \d+)?(?: is)? too small",
    r"too small.{0,40}minimum is",
    r"minimum is \d+ tokens",
    r"no room for a conversation",
    r"cannot compress (?:any )?further|max(?:imum)? compression attempts",
    r"maxfilereadtokenexceeded|\bfile content\b.{0,40}exceeds|use offset and limit parameters",
    r"context window so resizing",
    r"overflow recovery (?:failed|exhausted)|\b(?:output|result)\b.{0,60}\b(?:was|has been) truncated",
)
"""Errors that agents raise themselves before or after a call; OpenClaw's window guard is the first two.

Limits of a tool that reads files are cured by the model, which reads less; GPT4All's last line is no error.
"""
LOG_LINE = re.compile(r"\blevel=(?:trace|debug|info|warn(?:ing)?)\b.{0,200}\bmsg=\W{0,3}truncat")
"""Ollama's log says so of a prompt that it cuts, and then answers."""
THROTTLE_ADVICE = re.compile(r"throttl|rate[ -]?limited")
"""General words for limits of rate, as clients put them beside any error."""
SENTENCE_END = re.compile(r"[!?。\n]|\.(?=\s|$)|\berrors?:")
FAILED_COMPACTION = _join_alternatives(
    r"\bcompact(?:ion|ing)?\b.{0,40}(?:failed|cancel|timed out|aborted)",
    r"summari[sz]ation (?:failed|cancel)",
)
"""An agent's compaction that failed, for whatever reason."""

# Matched before rate limits: a quota that is used up for hours is not cured by the short waits of a rate limit.
UPSTREAM_DOWN = _join_alternatives(r"upstream connect error|reset before headers")
"""Envoy without a server behind it, under any status."""
SATURATED = _join_alternatives(
    r"负载.{0,4}(?:饱和|已满|过高)|out of capacity|(?:tier|server|cluster) capacity exceeded"
)
"""The servers are full; some gateways send this with a code of rates or money."""
# Vertex and DashScope call the tokens or requests of a minute a quota.
MINUTE_QUOTA = _join_alternatives(
    r"quota exceeded for.{0,120}per[ _](?:minute|second)",
    r"quota exceeded for aiplatform\.googleapis\.com/online_prediction",
    r"allocated quota exceeded|account quotas for amazon bedrock",
)
DEFINITE_QUOTA = _join_alternatives(
    r"insufficient_quota",
    r"current quota",
    r"usage limit",
    r"check your plan",
    r"(?:monthly|weekly|daily) (?:(?!rate|spend)\w+ ){0,2}(?:limit|quota|allowance|cap)",
    r"\d+[ -]hours? (?:usage )?limit",
    r"quota exceeded for",
    r"(?:organi[sz]ation|project|account|team|user|key)s? quota",
    r"quota (?:has been |was |is )?(?:exceeded|exhausted|reached)",
    r"exceed\w* (?:\w+ ){0,3}quota",
    r"used (?:up )?all (?:of )?your (?:\w+ ){0,2}(?:tokens|messages|requests)",
    r"\bno (?:tokens|messages) (?:left|remaining)",
    r"\bapi calls? limit|\bl[ií]mite de (?:uso|mensagens|mensajes|messages)\b|\blimite di messaggi\b|nachrichtenlimit",
    r"(?:reached|used up|exceeded|exhausted) (?:for|of|in) (?:this|the) (?:month|week|day|billing)",
    r"额度|配额|限额|使用上限|(?:今日|今天|本日|每天|本月).{0,16}(?:上限|限制|用量)",
)
# "reset", "per minute" and "tpm" stand here in several languages, because an overflow never mentions a time.
RATE_LIMIT = _join_alternatives(
    r"raten?[ _-]?limit|\bper-(?:model|project|region|key|user) limit",
    r"too many (?:concurrent )?requests",
    r"throttl",
    r"\b[io]?[tr]p[mdhs]\b",
    r"(?:per[ -]|/ ?|(?:this|last|each|every|a|next) )(?:min(?:ute)?|hour|day|second)\b",
    r"concurren(?:t|cy)",
    r"\bresets? (?:in\b|at\b|after\b|on\b|\d)",
    r"\b(?:pro|par|por|al|per) (?:minut\w*|stunde|heure|hora|ora|tag|jour|d[ií]a|giorno|sekunde|seconde|segundo)\b",
    r"slow ?down",
    r"please wait before trying",
    r"requests? limit",
    r"quota exceeded.{0,40}per",
    r"使用量.{0,16}(?:超|上限|达|達)",
    r"速率|频率|频繁|限流|每分钟|每秒|每日|并发|レート|요청 한도|分あたり|분당|limite de d[eé]bit|"
    r"l[ií]mite de (?:taxa|velocidad)|лимит запросов|в минуту",
)
BILLING_LIMIT = _join_alternatives(
    r"(?<!no )\bcredits?\b",
    r"billing",
    r"payment",
    r"\bbalance\b",
    r"can only afford",
    r"paid (?:account|plan)",
    r"\bspend(?:ing)?\b",
    r"\barrears\b|\brecharge\b|account is in good standing|余额|欠费|充值",
)
QUOTA_LIMIT = _join_alternatives(r"\bquota", r"quotaexceeded", r"allowance")
PROVIDER_OVERLOADED = _join_alternatives(
    r"overloaded",
    r"service (?:is )?(?:temporarily |currently )?unavailable",
    r"at capacity",
    r"over capacity",
    r"high demand",
    r"high (?:traffic|load)",
    r"server is busy",
    r"temporarily unavailable",
    r"繁忙|过载",
)

STATED_DURATION = _join_alternatives(
    r"\b(?:in|within|over|during|after|for|last|past|every|wait|~) (?:the |a )?(?:last |past |previous |next |about )?"
    r"\d{1,6} ?-?(?:s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?)\b",
    r"\b(?:last|past|every|per|next) \d{1,6} ?[smhd]\b|\b\d{1,6}-(?:second|minute|hour|day)\b",
    r"\d ?(?:分|秒|時間|日間)(?:後|以内|間に)|\d ?(?:分钟|分鐘|秒|小时|小時|天)(?:后|後|内|內)",
    r"\d ?(?:초|분|시간) ?(?:후|뒤|이내)",
)
"""A length of time; matched against ``raw_text``, since normalizing numbers would change "1.5m"."""
TEMPORARY_LIMIT = _join_alternatives(
    r"\b(?:again|retry|back|retried|resubmit)(?: (?:your|the|this) request)?(?: again)? (?:later|shortly|soon|"
    r"momentarily|tomorrow|in a (?:bit|few|little|minute|moment|second|while)|after (?:a|some) (?:while|time))",
    r"\bwait\b|\bright now\b|\bat the moment\b|\bthroughput\b|\brate\b|available again",
    r"\b(?:last|past|previous|next|current|each|this) (?:few )?(?:seconds?|minutes?|hours?|days?|weeks?|months?)\b",
    r"\b(?:rolling|usage|current|time|rate) window\b|\bresets\b|will reset|replenish|refill|cool[ -]?down",
    r"resource[ _]?(?:has been )?exhausted",
    r"稍后|稍後|等待|本分钟|本小时|しばらく|後ほど|のちほど|(?<!た)後で|나중에|잠시|"
    r"später|plus tard|m[áa]s tarde|mais tarde|pi[ùu] tardi|"
    r"позже",
)
"""Limits that pass with time. Matched only against errors that sound like an overflow, as the next four are."""
PERIOD_LIMIT = _join_alternatives(
    r"\b(?:today|tonight|(?:for|of|in) the (?:day|week|month)|fair[ -]use)\b",
    r"\b(?:hourly|daily|weekly|monthly|allotment|allotted)\b|\b(?:this|billing|usage) (?:period|cycle)\b",
    r"\bper (?:key|user|account|org\w*|project|team|customer)\b",
    r"\b(?:key|user|account|team|org\w*|project|subscription)s? (?:has |have )?(?:exceeded|reached|used|hit)\b",
    r"budget (?:\w+ ){0,3}(?:exhausted|spent|used up)",
    r"\b(?:hit|reached|used up|exceeded) your (?:\w+ ){0,2}(?:prompt|message|chat|query|token)s? (?:limit|allowance)"
    r"(?! (?:for|of|in) (?:this|the) (?:conversation|chat|request|model))",
)
"""Quotas of a period that are used up."""
PLAN_LIMIT = _join_alternatives(
    r"\bplan limits?\b|\blimits? of (?:your|the) plan\b",
    r"\b(?:prompt|message|chat|query) limit (?:was |has been |is )?(?:reached|hit|exceeded)",
    r"\b(?:free|trial|starter|basic|current|your) (?:plan|tier|subscription)\b",
    r"\b(?:for|of|by) (?:your |this |the )?(?:org(?:ani[sz]ation)?|account|team|user|project|workspace|api key)\b",
    r"\b(?:your|the|this) (?:org(?:ani[sz]ation)?|account|team|user)s? (?:has |have )?(?:sent|used|reached)\b",
)
"""Quotas of a plan or an account. Matched only under 402, 403 and 429 (``_PLAN_STATUSES``)."""
SHARED_CAPACITY = _join_alternatives(
    r"\bqueued?\b|\bpeak\b|(?:tokens|requests) being processed|\bbusy\b|traffic|in flight",
    r"\b(?:current|shared|system|service|server|tier|overall|our|provisioned|insufficient|limited|more|no) capacity\b",
)
"""Capacity that other requests take up."""
ACCESS_DENIED = _join_alternatives(
    r"authentication[ _]?(?:error|exception|failed)|access[ _]?denied|unauthorized|permission[ _]?(?:error|denied)"
)

LONG_CONTEXT_TIER = _join_alternatives(
    r"extra usage.{0,40}long[ -]context",
    r"long[ -]context.{0,60}(?:not (?:yet )?available|not enabled|extra usage|required|upgrade|"
    r"tier|subscription|not included)",
    r"(?:upgrade|tier|extra usage|enable).{0,60}long[ -]context",
)
STRING_TOO_LONG = re.compile(r"invalid ([\w.\[\]-]{1,200}): string too long")
ARRAY_TOO_LONG = _join_alternatives(
    r"invalid (?:messages|input|contents): array too long",
    r"too many messages",
    r"(?:number of|maximum) messages",
    r"(?:messages|contents|input): (?:too many items|list should have at most|array too long)",
    r"messages? count.{0,40}exceed",
)
# One result, block or message that is too large: cutting that part is enough.
PART_TOO_LARGE = _join_alternatives(
    r"(?:tool[ _](?:result|output|response)|function[ _](?:result|response|output)|text block|"
    r"content block|single message|"
    r"message content)\S{0,40} (?:content )?(?:is |are )?(?:too (?:large|long)|exceed)",
    # Jackson, the JSON parser behind DashScope (QwenLM/qwen-code#747)
    r"string value length.{0,24}exceeds the maximum allowed",
    r"(?:messages|input|contents)[.\[]\d+[\w.\[\]]*(?:content|text|output|"
    r"arguments)[\w.\[\]]*:? (?:is too (?:long|large)|string should have at most)",
)

# llama.cpp: the server was started with too small a batch, whatever the prompt.
SERVER_MEMORY = _join_alternatives(
    r"out[ _]?of[ _]?memory|insufficient memory|memory limit|not enough (?:\w+ )?memory|free memory|memory pressure",
    r"gpu_memory_utilization|\bcuda error|memory [\d.]+ ?[kmg]i?b exceeds",
)
"""A server without memory; vLLM says so of its KV cache when it starts, with the sizes of its own settings."""
# TGI and vLLM compare their own settings when they start, before there is any request.
SERVER_SETTINGS = _join_alternatives(
    r"physical batch size",
    r"increase the .{0,20}batch",
    r"\bubatch\b",
    r"argumentvalidation|initiali[sz]ing the engine|engine (?:core )?initiali[sz]ation",
    r"\bmax_(?:input|total|batch)\w*\W{0,3}\d{0,15}\W{0,3}must be (?:<|>|less|greater).{0,12}max_(?:total|input|batch)",
)
# Anthropic: max_tokens must be "greater than thinking.budget_tokens".
THINKING_BUDGET = re.compile(r"greater than thinking\.?_?budget")
CACHE_ERROR = _join_alternatives(r"cached[ _]content", r"cache_control", r"start caching", r"minimum token count")
_OUTPUT_LIMIT_WORDS = (
    r"(?:max_?(?:new_|completion_|output_)?_?tokens|maxoutputtokens|(?:completion|output) tokens?|"
    r"maximum tokens (?:you )?requested|maximum output)"
)
OUTPUT_LIMIT = _join_alternatives(
    rf"{_OUTPUT_LIMIT_WORDS}.{{0,80}}(?:(?:cannot|must not) be (?:greater|larger|more)|非法|不合法|无效|取值范围|超出)",
    r"increase max[_ ]?tokens|too many (?:output|completion|generated) tokens",
    r"\bmax(?:imum)? tokens (?:exceeds? |value|is too|must be|parameter)",
    r"\b(?:output|completion)s? (?:has |have )?(?:too many tokens|token (?:limit|count).{0,24}exceed)",
    rf"{_OUTPUT_LIMIT_WORDS}.{{0,80}}(?:too large|too high|too big|exceed|at most|must be (?:less|at|between|<|"
    rf"in|>|greater)|valid range|range|"
    r"maximum (?:allowed|value)|>|supported range|below minimum|above maximum|invalid|limit)",
    rf"(?:too large|exceed\w*|valid range|at most|maximum (?:allowed )?(?:number|value)|"
    rf"supports? (?:up to|at most)|invalid|supported range|limit|range of)"
    rf".{{0,60}}{_OUTPUT_LIMIT_WORDS}",
)
# vLLM computes max_tokens as window less prompt, so a prompt over the window makes it negative: an overflow after all.
OUTPUT_LENGTH = re.compile(
    r"(?:the|this models?) maximum output (?:length|tokens|size)|maximum allowed number of output tokens"
)
"""Names of the limit that was broken, which leave no doubt."""
ASIDE = re.compile(
    r"\([^()\d\n]{0,120}\)"
    r"|(?:(?<=[.;,!] )|\b(?:please|try|consider|you can|you may|or|and) )"
    r"(?:reduc|lower|decreas|shorten|leav|us(?:e|ing)\b|increas|adjust|request(?:ing)? (?:few|less))[^.\n]{0,160}"
)
"""Remarks in brackets and advice, which name other things than the one that is wrong."""
NO_ROOM_FOR_OUTPUT = _join_alternatives(r"max_(?:completion_|output_)?tokens must be at least 1, got -")
MEDIA_SUBJECT = re.compile(
    r"\b(?:images?|files?|attachments?|pictures?|photos?|audio|videos?|pdfs?)\b(?: or \w{1,12})?"
    r"(?: (?:in|of|from|at|attached to) (?:this|the|your|a) \w{1,16})? (?:is|are|was|were) too (?:large|long|big)"
)
"""A part of the conversation that is too large, not the conversation."""
_MEDIA_WORDS = (
    r"(?:images?|pdfs?|audio|videos?|media|documents?|attachments?|photos?|pictures?|pixels?|"
    r"dimensions?)"
)
MEDIA_ERROR = _join_alternatives(
    rf"\b{_MEDIA_WORDS}\b.{{0,80}}(?:exceed|too (?:large|many|big|long|small)|maximum|limit|at most|"
    rf"could not|cannot|unable|invalid|not valid|unsupported|"
    r"not supported|corrupt|failed|password|not process|\d (?:is|are) allowed)",
    rf"(?:exceed|too (?:large|many|much|big)|maximum of|at most|could not|cannot|unable to|invalid|"
    rf"unsupported|failed to|up to|not support).{{0,60}}\b{_MEDIA_WORDS}\b",
    r"maximum content size limit",
    r"mime type",
    r"\bfiles? (?:\w{1,12} ){1,2}(?:are|is) too large",
    r"file (?:size|is) (?:exceed|too large)|uploaded file.{0,40}(?:exceed|too large)",
)

_TOO_LONG = r"too[ _](?:long|large|big)\b"
# Not of parts that are cured in another way ("messages.0.name is too long"), nor of time ("took too long").
_SUBJECT_WORD = (
    rf" (?!(?:{_MEDIA_WORDS}|tools?|functions?|names?|ids?|keys?|headers?|fields?|parameters?|metadata|files?|urls?|"
    r"titles?|descriptions?|took|taking)\b)\w{1,20}"
)
_FOREIGN_INPUT = (
    r"(?:entrada|mensaje|mensagem|solicitud|conversaci[oó]n|conversa\b|texto|prompt|requ[eê]te|message|entr[ée]e|eingabe|"
    r"contexto|contexte|contesto|kontext|контекст|nachricht|anfrage|unterhaltung|richiesta|messaggio|conversazione|zapytanie|wiadomo|girdi|istem|invoer|bericht|"
    r"запрос|сообщени|диалог|промпт)"
)
_FOREIGN_TOO_LONG = (
    r"(?:demasiado (?:larg|grande)|muito (?:long|grande)|trop (?:long|grand)|zu (?:lang|gro(?:ß|ss))|"
    r"troppo (?:lung|grand)|z(?:byt|a) (?:dług|duż)|çok (?:uzun|büyük)|te (?:lang|groot)\b|"
    r"слишком (?:длинн|больш|велик))"
)
CONTEXT_OVERFLOW = _join_alternatives(
    rf"{_CONTEXT_EXTENT}.{{0,60}}{_EXCEEDING_WORDS}",
    rf"{_EXCEEDING_WORDS}.{{0,60}}{_CONTEXT_EXTENT}",
    r"\bmax(?:imum)?[ _](?:allowed |supported |total )?(?:context|prompt|input|model|sequence|"
    r"seq)[ _](?:length|len|size|window|limit|tokens?)\b(?! (?:must|should|can|needs to) )",
    r"\bmax(?:imum)? (?:input|prompt|message) (?:characters|length)",
    r"exceed\w* (?:the )?max(?:imum)? message tokens",
    r"context (?:length|window|size)(?: is)? only",
    r"context window limit",
    r"exceed\w* (?:the )?max(?:imum)? context",
    r"kv cache is full",
    r"configured context size",
    rf"\b{_PROMPT_WORDS}(?: text| data| content| length| size)?(?: is| are| was| were)?(?: far| much|"
    rf" way)?[ _]too[ _](?:long|large|big)\b",
    rf"\b{_PROMPT_WORDS}(?:{_SUBJECT_WORD}){{0,4}} (?:is|are|was|were|got|became) (?:far |much |way )?{_TOO_LONG}",
    rf"\b{_PROMPT_WORDS}(?: (?:tokens?|text|length|size)){{1,2}} {_TOO_LONG}",
    r"request(?: is)? too (?:long|large) for (?:this|the|requested) (?:model|context)",
    r"context shift (?:is disabled|cannot be used)",
    r"\bcontext (?:has been |was |is )?(?:exceeded|exhausted)\b|(?:^|: |error )context overflow(?:ed)?[.!]?$",
    r"(?:exceed\w*|insufficient|not enough) (?:(?:the|its|your|max|maximum|available) )*context\b(?! deadline)",
    r"\bmax(?:imum)? context (?:was |is |has been )?(?:exceeded|reached)",
    r"(?:not|doesnt|cant|wont|didnt) fit\b.{0,40}\bcontext\b",
    r"(?:total|combined|sum)\b.{0,40}\b(?:input|prompt)\b.{0,24}\b(?:output|completion|answer)\b.{0,40}(?:exceed|\bover\b)",
    rf"(?<!stop )\bsequence (?:is |length )?{_TOO_LONG}",
    rf"\b{_PROMPT_WORDS} (?:has |have )?(?:grown|become|got(?:ten)?) (?:far |much )?{_TOO_LONG}",
    r"find (?:a |free )?(?:kv |cache )?(?:slot|space|room)\b.{0,20}\b(?:batch|kv|cache)|context (?:is )?full\b",
    r"session max length|max(?:imum)? (?:conversation|session|chat) (?:length|size)",
    r"(?:input|sequence|prompt) length of \w+ is \d+.{0,20}max_length",
    r"\b(?:prompt|input|conversation|context|messages|history|chat|session|thread|dialog(?:ue)?)\b.{0,60}"
    r"(?:exceeds?|exceeded|cannot exceed|longer than|larger than|greater than|over the|above the|overflows?)\b"
    r".{0,60}(?:tokens?|context|max(?:imum)? (?:allowed )?length|window|length|"
    r"(?<!recursion )(?<!depth )(?<!time )(?<!rate )limit|capacity)",
    r"max(?:imum)? (?:length|size) (?:for|of) (?:this|the|your) (?:conversation|chat|session|thread|prompt|input)",
    r"\b(?:conversation|chat|session|thread)\b.{0,30}(?:reached|hit) (?:its|the) (?:max(?:imum)? )?(?:length|size)\b",
    r"\b(?:conversation|chat|session|thread)\b.{0,30}(?:reached|hit) (?:its|the) limit\b.{0,12}"
    r"(?:start|begin|open) a new",
    r"n_prompt_tokens\W{1,3}\d+.{0,20}n_ctx\W{1,3}\d",
    r"\b(?:total|"
    r"request(?:ed)?)(?: \w+){0,3} tokens?(?: count)?(?: \(?\d+\)?)?(?: tokens?)? (?:exceeds?|"
    r"exceeded|cannot exceed)",
    r"input tokens exceed",
    r"number of (?:input |prompt )?tokens.{0,30}(?:exceed|cannot exceed)",
    r"exceed\w* (?:the |this |your |its )?(?:models? )?(?:maximum |max )?(?:number of tokens|"
    r"token limit|input length|prompt length)",
    r"model token limit",
    r"too many (?:input|prompt|context) tokens",
    r"tokens in (?:the )?request more than",
    r"max size: \d+ tokens",
    r"reduce (?:the |your )?(?:length|size|number of tokens) (?:of|in) (?:the |your )?(?:messages|"
    r"prompt|input|conversation|history|context|request)",
    r"(?:ran|run|running) out of (?:room|space|context).{0,40}context|out of context",
    r"range of input length should be",
    r"must have less than \d+ tokens",
    r"too large for model with",
    r"prompt exceeds (?:the )?max(?:imum)? length",
    r"prompt (?:contains|has) .{0,40}too large",
    r"n_keep.{0,30}n_ctx",
    r"n_ctx too small",
    r"tokens to keep from the initial prompt",
    r"context overflow:",
    r"trying to keep the first \d+ tokens",
    r"prompt has too many tokens",
    r"current length is \d+.{0,10}while limit is",
    r"longer than the models? (?:maximum )?context",
    r"maximum model length",
    r"context window is \d+ tokens.{0,20}requested \d+",
    r"上下文.{0,12}(?:过长|太长|超|溢出|限制|不足)|超(?:出|过|限).{0,12}(?:上下文|最大长度|长度限制|长度|token|模型)|压缩上下文|最大上下文",
    r"(?:输入|提示词?|prompt|对话|内容|消息|文本|请求|会话|令牌).{0,12}(?:过长|太长|超长|超过|超出|超限)",
    r"(?:輸入|提示詞?|對話|內容|訊息|文字|請求|上下文).{0,12}(?:過長|太長|超長|超過|超出|超限)|超(?:出|過).{0,12}(?:上下文|長度)",
    r"(?:コンテキスト|トークン|プロンプト|入力).{0,24}(?:超|長すぎ|上限)|"
    r"(?:컨텍스트|토큰|프롬프트|입력).{0,24}(?:초과|너무 깁|너무 길)",
    rf"\b{_FOREIGN_INPUT}[^:\n]{{0,40}}{_FOREIGN_TOO_LONG}|{_FOREIGN_TOO_LONG}[^:\n]{{0,40}}\b{_FOREIGN_INPUT}",
    r"контекст.{0,40}(?:превы|слишком|длинн)|(?:превы|слишком).{0,40}контекст",
    r"(?:contexto|contexte|contesto|kontext\w*|kontextfenster)\b.{0,60}(?:exced|supera|sobrepasa|"
    r"d[eé]pass|[uü]berschr|[uü]berstieg|super)",
    r"(?:exced\w*|supera\w*|d[eé]passe\w*|[uü]berschreite\w*|zu lang).{0,60}(?:contexto|contexte|"
    r"contesto|kontext)",
)
"""Wordings that can only mean a prompt that does not fit the window."""
BODY_TOO_LARGE = _join_alternatives(
    r"request(?: entity| payload| body| size)?(?: is)? too (?:large|big)",
    r"(?:payload|entity|body|content)(?: is)? too (?:large|big)",
    r"payload size exceed|too large (?:a )?(?:body|request|payload)",
    r"request exceeds the maximum",
    r"request (?:body |payload |entity )?size.{0,40}(?:exceed|limit)",
    r"(?:body|payload|request).{0,40}(?:exceed|larger than|over).{0,40}(?:bytes|\b[kmg]i?b\b)",
    r"length limit exceeded",
    r"request_too_large",
    r"maximum (?:allowed )?(?:number of bytes|request size|body size|payload)",
)
TOKEN_OVERFLOW = _join_alternatives(
    r"too many tokens",
    r"tokens? limit (?:was |is |has been )?(?:exceeded|reached)",
    r"exceed\w* (?:\w+ ){0,4}(?:token|context) (?:limit|count|length)",
    r"expected maxlength: \d+, actual",
    r"(?:token|prompt|input|context|length).{0,60}exceeds the limit of \d+",
    r"total tokens.{0,30}exceed",
    r"token count.{0,30}exceed",
    r"tokens?.{0,40}(?:exceed|over|greater than|more than).{0,40}(?:limit|max)",
    r"max(?:imum)? (?:input |prompt )?tokens? (?:of \d+ )?(?:exceeded|limit)",
    r"(?<!output )(?<!response )(?<!completion )(?<!answer )(?<!generation )\blength limit (?:is |was |has been )?"
    r"reached",
    r"max(?:imum)? (?:text )?length (?:was |is |has been )?reached",
    r"(?:larger|bigger|longer|increase (?:the|your)) (?:context (?:length|size|window)|num_ctx|n_ctx)\b",
    r"member\.content failed to satisfy constraint: member must have length less",
    r"предел длины|превышен\w* (?:длин|лимит токен|максимальн)",
    r"input is too long|text is too long|inputs? (?:length|size) exceed",
    r"shorten (?:the |your )?(?:prompt|input|messages|conversation)",
)
"""Wordings that mean a prompt is too long, but only under the statuses of an invalid request (400, 413, 422)."""

# Wordings about pairing, order, roles, ids and thinking blocks: normalization should have prevented them.
CONTEXT_WORD = re.compile(
    r"\bcontext(?:o|e)?s?\b(?! (?:of|management))|\bkontext|контекст|上下文|コンテキスト|컨텍스트|\bbağlam|\bcontesto"
)
"""The word for the context in the languages of providers."""
TOKEN_WORDS = _join_alternatives(r"token|context|prompt|input length|sequence length|input_ids")
"""Words of which one must stand beside numbers for these to be about the prompt."""
INVALID_HISTORY = _join_alternatives(
    r"tool_?use|tool_?result|tool_?calls?\b|tool_call_id|tool[ _]call id|call_id|function ?call|"
    r"function ?response|tool[ _]message|tool output|\btool results?\b|\btool id\b",
    r"thinking|redacted_thinking|\bsignature|thought_?signature",
    r"\breasoning\b.{0,60}(?:item|following|without|provided|content)",
    r"without its required",
    r"roles? must|must alternate|alternate between|last (?:message )?role|unexpected role|"
    r"expected .{0,20}role|role .{0,20}must",
    r"(?:first|last|final) (?:\w+ )?(?:message|content|turn)|prefill",
    r"(?:text )?content.{0,20}(?:must be|cannot be|is) (?:non-?)?(?:empty|blank)",
    r"non-?empty (?:content|text)|empty (?:content|message|text)",
    r"same turn",
    r"must be followed by|must follow|must precede|preceding message",
    r"no tool (?:call|output) found|orphan",
    r"duplicate (?:item|id|tool)|ids? must be unique",
    r"trailing whitespace",
    r"number of function",
    r"item .{1,80} (?:not found|of type)",
    r"conversation (?:blocks|roles)",
    r"messages? (?:with role|must contain)",
)
INVALID_REQUEST = _join_alternatives(
    r"schema|tool_choice|response_format|temperature|top_[pk]|\bparameters?\b|"
    r"unsupported (?:parameter|value)|unknown (?:field|parameter|name)|"
    r"\bjson\b|unrecognized|extra inputs|metadata|budget_tokens|thinking budget|flagged|policy|"
    r"content_filter|content management|reasoning is mandatory",
)
FLAGGED_CONTENT = _join_alternatives(
    r"\b(?:was|were|been|is) flagged\b|\bmoderation\b",
    r"\bblocked (?:due to|because of|by|for)\b.{0,24}(?:safety|policy|content|prohibited|recitation)",
)
# Responses: `previous_response_id` names a response that has expired or belongs to another key.
UNKNOWN_PREVIOUS_RESPONSE = _join_alternatives(r"previous[ _]response.{0,80}not found")
MODEL_ERROR = _join_alternatives(
    r"no endpoints found|on-demand throughput|inference profile",
    r"\bmodels?\b.{0,80}(?:not found|does not exist|doesnt exist|not exist|is invalid|"
    r"invalid model|is unsupported|is not supported|not available|"
    r"no access|deprecated|retired|decommission|end of (?:its )?life|unknown|no longer|"
    r"not a valid)",
    r"(?:unknown|no such|invalid|unsupported|nonexistent|could not find|legacy) (?:\w+ )?model\b",
    r"模型不存在|\bendpoint\b.{0,30}(?:does not exist|not found)",
)
AUTH_ERROR = _join_alternatives(
    r"(?:invalid|incorrect|missing|expired|no|wrong|bad) (?:\w+[ -]){0,2}(?:api[ -_]?key|"
    r"token provided|credentials?|authentication|auth)",
    r"unauthori[sz]ed|authenticat|api[ _-]key (?:is )?(?:not valid|invalid|expired|missing|"
    r"required)|permission|(?<!extra_)forbidden|access denied|not authorized",
    r"security token|x-api-key|user location|access token (?:is )?(?:invalid|expired)|access_denied",
    r"not available in your (?:country|region)|unsupported_country",
)
NETWORK_ERROR = _join_alternatives(
    r"timed? ?out|timeout",
    r"connection (?:error|reset|refused|closed|aborted|lost|terminated|failed)",
    r"econn\w+|etimedout|enotfound|eai_again|epipe",
    r"socket hang|fetch failed|network|\bdns\b|getaddrinfo|ssl|premature (?:close|end)|terminated|"
    r"disconnected|peer closed|\babort(?:ed)?\b|incomplete (?:read|chunked)|stream (?:ended|"
    r"closed)",
)
SERVER_ERROR = _join_alternatives(
    r"internal (?:server )?error|server (?:had an )?error|bad gateway|unexpected error|"
    r"something went wrong|(?:empty|malformed) response"
)
# Names of providers and SDK exceptions among them: LiteLLM wraps an empty 400 in "BadRequestError: VertexAIException".
_REASONLESS_WORDS = frozenset(
    {"google", "vertex", "vertexai", "openai", "anthropic", "gemini", "cerebras", "azure", "litellm", "request",
     "failed", "with", "status", "code", "error", "errors", "bad", "http", "api", "no", "body", "the", "null",
     "none", "provider", "returned", "response", "upstream", "message", "type", "param", "detail", "exception",
     "badrequesterror", "apierror", "openaiexception", "vertexaiexception", "geminiexception",
     "anthropicexception", "invalid_request_error", "invalid_argument", "400", "413", "422"}
)  # fmt: skip
_WORD = re.compile(r"\w+")


def has_no_reason(text: str) -> bool:
    """Return whether ``text`` is empty or consists of the stock words of a refusal (``400 bad request``)."""
    return all(word in _REASONLESS_WORDS for word in _WORD.findall(text))
