/** OpenClaw's messages as Holdfast reads them, and Holdfast's plan applied to OpenClaw's own message objects. */

/** Characters of thinking in a token, about. */
const CHARS_PER_TOKEN = 4
/** Tokens of a picture: what Claude charges for one of the largest size it keeps. */
const PICTURE_TOKENS = 1_600

/**
 * Return the messages as `POST /v1/plan` takes them, and by handle the messages that each row stands for.
 *
 * OpenClaw has a message for each tool result. The results of one answer's calls belong together, so they are one row.
 */
export function describeMessages(messages) {
  const rows = []
  const ownMessages = new Map()
  for (const [index, message] of messages.entries()) {
    const last = rows.at(-1)
    if (message.role === 'toolResult' && last?.toolResults !== undefined) {
      last.toolResults.push(describeResult(message))
      addHiddenTokens(last, message)
      ownMessages.get(last.handle).push(message)
      continue
    }
    const row = { handle: String(index), ...describeMessage(message) }
    addHiddenTokens(row, message)
    rows.push(row)
    ownMessages.set(row.handle, [message])
  }
  return { rows, ownMessages }
}

function describeMessage(message) {
  if (message.role === 'toolResult') return { role: 'user', toolResults: [describeResult(message)] }
  // Summaries, remarks of extensions and the like reach the model as words of the user.
  if (message.role !== 'assistant') return { role: 'user', text: readText(message) }
  const calls = readBlocks(message).filter(block => block.type === 'toolCall')
  const toolUses = calls.map(({ id, name, arguments: input }) => ({ tool_use_id: toPlainId(id), tool: name, input: input ?? {} }))
  return { role: 'assistant', text: readText(message), ...(toolUses.length > 0 && { toolUses }) }
}

function describeResult(message) {
  const isError = message.isError === true
  return { tool_use_id: toPlainId(message.toolCallId), text: readText(message), ...(isError && { isError }) }
}

/** Count what the row cannot say: thinking and pictures. */
function addHiddenTokens(row, message) {
  let tokens = 0
  for (const block of readBlocks(message)) {
    if (block.type === 'thinking') tokens += Math.ceil(String(block.thinking ?? '').length / CHARS_PER_TOKEN)
    if (block.type === 'image') tokens += PICTURE_TOKENS
  }
  if (tokens > 0) row.hiddenTokens = (row.hiddenTokens ?? 0) + tokens
}

/** OpenClaw writes an id with other characters in its transcript than in a request; both must be one for the log. */
function toPlainId(id) {
  return String(id ?? '').replace(/[^A-Za-z0-9]/g, '')
}

function readBlocks(message) {
  return Array.isArray(message.content) ? message.content : []
}

function readText(message) {
  if (typeof message.content === 'string') return message.content
  const texts = readBlocks(message).filter(block => block.type === 'text').map(block => block.text)
  return texts.length > 0 ? texts.join('\n') : String(message.summary ?? message.output ?? '')
}

/**
 * Return the messages to send: OpenClaw's own objects, some with shorter texts, and extracts as new messages of the user.
 *
 * Throws if the plan names a message that there is not, or wants what cannot be done to OpenClaw's messages.
 */
export function applyPlan(planRows, ownMessages, firstTimestamp) {
  const messages = []
  const unused = new Map(ownMessages)
  for (const row of planRows) {
    if (row.handle === undefined) {
      messages.push(makeUserMessage(row, firstTimestamp))
      continue
    }
    const group = unused.get(row.handle)
    if (group === undefined) throw new Error(`its answer names message ${row.handle}, which it was not given`)
    unused.delete(row.handle)
    messages.push(...replaceTexts(group, row))
  }
  return messages
}

/** With the time of the first message, since OpenClaw writes the time before the text, and the text must stay the same. */
function makeUserMessage(row, firstTimestamp) {
  const isText = row.role === 'user' && typeof row.text === 'string' && !row.toolUses && !row.toolResults
  if (!isText) throw new Error('its answer has a new message that is not the words of a user')
  return { role: 'user', content: row.text, timestamp: firstTimestamp }
}

function replaceTexts(group, row) {
  const resultTexts = new Map((row.toolResults ?? []).map(result => [result.tool_use_id, result.text]))
  const replaced = group.map(message => {
    if (message.role === 'toolResult') {
      const id = toPlainId(message.toolCallId)
      const text = resultTexts.get(id)
      resultTexts.delete(id)
      return text === undefined ? message : replaceText(message, text)
    }
    return row.text === undefined ? message : replaceText(message, row.text)
  })
  if (resultTexts.size > 0) throw new Error('its answer replaces a tool result that it was not given')
  return replaced
}

/** Replace the text of a message, and keep its thinking, pictures and calls where they are. */
function replaceText(message, text) {
  if (!Array.isArray(message.content)) return { ...message, content: text }
  const content = []
  let isWritten = false
  for (const block of message.content) {
    if (block.type !== 'text') content.push(block)
    else if (!isWritten) {
      content.push({ type: 'text', text })
      isWritten = true
    }
  }
  return { ...message, content: isWritten ? content : [{ type: 'text', text }, ...content] }
}

/** Whether two objects are the same message, as far as OpenClaw keeps it from the transcript to the request. */
export function isSameMessage(one, other) {
  if (one === other) return true
  return one.role === other.role && one.timestamp === other.timestamp && toPlainId(one.toolCallId) === toPlainId(other.toolCallId)
}

/**
 * Return the messages with the beginning that OpenClaw left out.
 *
 * Of a long transcript OpenClaw loads the newest part, by its size in bytes, and begins anywhere: with an answer, or with
 * a tool result, which providers refuse. The transcript has the rest.
 */
export function completeMessages(messages, transcript) {
  const start = transcript.findIndex(message => isSameMessage(message, messages[0]))
  return start > 0 ? [...transcript.slice(0, start), ...messages] : messages
}

/** About how many tokens the messages have, for OpenClaw's own display while Holdfast does not answer. */
export function estimateTokens(messages) {
  const { rows } = describeMessages(messages)
  const hiddenTokens = rows.reduce((sum, row) => sum + (row.hiddenTokens ?? 0), 0)
  return Math.ceil(JSON.stringify(rows).length / CHARS_PER_TOKEN) + hiddenTokens
}
