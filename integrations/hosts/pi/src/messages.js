/**
 * pi's messages as Holdfast reads them, and Holdfast's answer as messages of pi.
 *
 * Only texts, calls and results go to Holdfast. What comes back names messages by their handles, so that thinking,
 * signatures, pictures and every message without a change are pi's own objects.
 */

/** Tokens counted for a picture: about what providers bill for one of a megapixel. */
const PICTURE_TOKENS = 1_600
/** Characters a token, for what only has to be counted. */
const CHARS_PER_TOKEN = 4
/** How every extract begins (EXTRACT_OPENING in src/holdfast/planning/extract/previous_summary.py). */
const EXTRACT_OPENING = 'The conversation before this point was replaced by this extract of it ('
/** How pi introduces a summary to the model. Holdfast recognizes a summary of pi's own by these words. */
const SUMMARY_OPENING = 'The conversation history before this point was compacted into the following summary:\n\n<summary>\n'
const SUMMARY_CLOSING = '\n</summary>'

/** Return pi's message as Holdfast reads it, or undefined for one that pi does not send to the model either. */
export function describeMessage(message, handle) {
  switch (message.role) {
    case 'user':
    case 'custom':
      return withHiddenTokens({ handle, role: 'user', text: joinTexts(message.content) }, message.content)
    case 'assistant':
      // pi sends no answer that was broken off.
      if (message.stopReason === 'error' || message.stopReason === 'aborted') return undefined
      return describeAnswer(message, handle)
    case 'toolResult': {
      const result = { tool_use_id: message.toolCallId, text: joinTexts(message.content), isError: message.isError === true }
      return withHiddenTokens({ handle, role: 'user', toolResults: [result] }, message.content)
    }
    case 'bashExecution':
      if (message.excludeFromContext) return undefined
      return { handle, role: 'user', text: `Ran \`${message.command}\`\n${message.output}` }
    case 'compactionSummary':
      return { handle, role: 'user', text: describeSummary(message.summary) }
    case 'branchSummary':
      return { handle, role: 'user', text: message.summary }
    default:
      return undefined
  }
}

function describeAnswer(message, handle) {
  const toolUses = message.content
    .filter(block => block.type === 'toolCall')
    .map(call => ({ tool_use_id: call.id, tool: call.name, input: call.arguments }))
  const described = { handle, role: 'assistant', text: joinTexts(message.content) }
  if (toolUses.length > 0) described.toolUses = toolUses
  const { input, output, cacheRead, cacheWrite } = message.usage ?? {}
  if (input + cacheRead + cacheWrite > 0) described.usage = { input, output, cacheRead, cacheWrite }
  return withHiddenTokens(described, message.content)
}

/** An extract of ours as it is, so that it is taken apart and carried on; a summary of pi's in the words around it. */
function describeSummary(summary) {
  return summary.startsWith(EXTRACT_OPENING) ? summary : SUMMARY_OPENING + summary + SUMMARY_CLOSING
}

function withHiddenTokens(described, content) {
  const hiddenTokens = typeof content === 'string' ? 0 : content.reduce((sum, block) => sum + countHidden(block), 0)
  return hiddenTokens > 0 ? { ...described, hiddenTokens } : described
}

/** Tokens of what a text cannot say. Encrypted thinking has no text; its length is the only measure there is. */
function countHidden(block) {
  if (block.type === 'image') return PICTURE_TOKENS
  if (block.type !== 'thinking') return 0
  const text = block.redacted || block.thinking === '' ? (block.thinkingSignature ?? '') : block.thinking
  return Math.ceil(text.length / CHARS_PER_TOKEN)
}

function joinTexts(content) {
  if (typeof content === 'string') return content
  return content
    .filter(block => block.type === 'text')
    .map(block => block.text)
    .join('\n')
}

/** Return what Holdfast reads of `messages`; the handle of each is its place in them. */
export function describeMessages(messages) {
  return messages.map((message, index) => describeMessage(message, String(index))).filter(described => described !== undefined)
}

/**
 * Return the messages to send, or undefined if the answer changes nothing.
 *
 * `added` are handles of messages that came after those the answer was made for; they follow as they are. Throws if
 * the answer does not fit the messages: a request with half of a conversation is worse than one that is too long.
 */
export function applyAnswer(messages, described, answer, added = []) {
  const entries = [...answer, ...added.map(handle => ({ handle }))]
  const own = new Map(described.map(one => [one.handle, one]))
  checkAnswer(own, entries)
  const isUnchanged = entries.length === described.length && entries.every(isKeptAsItIs)
  if (isUnchanged) return undefined
  return entries.map(entry =>
    entry.handle === undefined ? makeExtract(entry.text) : replaceTexts(messages[Number(entry.handle)], entry),
  )
}

const isKeptAsItIs = entry => entry.handle !== undefined && entry.text === undefined && entry.toolResults === undefined

function checkAnswer(own, entries) {
  const kept = []
  let previous = -1
  for (const entry of entries) {
    if (typeof entry !== 'object' || entry === null) throw new Error('its answer has an entry that is no message')
    if (entry.handle === undefined) {
      if (typeof entry.text !== 'string' || entry.text === '') throw new Error('its answer has a new message without text')
      continue
    }
    const described = own.get(entry.handle)
    if (described === undefined) throw new Error(`its answer names an unknown message (${entry.handle})`)
    const place = Number(entry.handle)
    if (place <= previous) throw new Error('its answer has the messages in another order')
    previous = place
    for (const { tool_use_id } of entry.toolResults ?? []) {
      const isOwn = described.toolResults?.some(result => result.tool_use_id === tool_use_id)
      if (!isOwn) throw new Error(`its answer names an unknown tool call (${tool_use_id})`)
    }
    kept.push(described)
  }
  const newest = [...own.keys()].at(-1)
  // Where the newest message alone is too large for the window, an extract of it ends the list.
  const endsWithExtract = entries.at(-1)?.handle === undefined
  if (newest !== undefined && kept.at(-1)?.handle !== newest && !endsWithExtract) {
    throw new Error('its answer leaves out the newest message')
  }
  checkPairs(own, kept)
}

/** Providers refuse a result without its call, and a call without its result. */
function checkPairs(own, kept) {
  const count = messages => {
    const calls = new Set(messages.flatMap(message => (message.toolUses ?? []).map(use => use.tool_use_id)))
    const results = messages.flatMap(message => (message.toolResults ?? []).map(result => result.tool_use_id))
    return { calls, results, orphans: results.filter(id => !calls.has(id)).length }
  }
  const before = count([...own.values()])
  const after = count(kept)
  const results = new Set(after.results)
  const lost = before.results.filter(id => after.calls.has(id) && !results.has(id))
  if (after.orphans > before.orphans || lost.length > 0) throw new Error('its answer parts a tool call from its result')
}

/** A message of the user's side with the extract. Its time is fixed: nothing in a request may depend on when it is sent. */
function makeExtract(text) {
  return { role: 'user', content: [{ type: 'text', text }], timestamp: 0 }
}

/** Return `message` with the texts of `entry` in place of its own; the same object if there are none. */
function replaceTexts(message, entry) {
  const text = entry.toolResults?.[0]?.text ?? entry.text
  if (text === undefined) return message
  if (!('content' in message)) return makeExtract(text) // pi's own summaries and commands: to the model, texts of the user
  const blocks = typeof message.content === 'string' ? [] : message.content
  const other = blocks.filter(block => block.type !== 'text')
  const position = blocks.findIndex(block => block.type === 'text')
  const before = blocks.slice(0, Math.max(position, 0)).filter(block => block.type !== 'text')
  return { ...message, content: [...before, { type: 'text', text }, ...other.slice(before.length)] }
}
