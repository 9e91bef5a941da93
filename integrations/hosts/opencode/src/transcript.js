/**
 * Write opencode's messages as the transcript of `POST /v1/plan`, and show the host's messages as its answer says.
 *
 * The transcript has what opencode's own conversion would send: texts, calls and results. What it cannot say
 * (reasoning, files, reminders) is counted, and stays in the host's message as it is.
 *
 * @typedef {{ info: Record<string, any>, parts: Record<string, any>[] }} HostMessage A message and its parts.
 * @typedef {{ tool_use_id: string, text: string, isError?: boolean }} ToolResult
 * @typedef {{ handle?: string, role?: string, text?: string, toolResults?: ToolResult[] }} AnswerRow
 */

/** Tokens of a picture. Providers count about this for one of usual size. */
const IMAGE_TOKENS = 1_600
/** Tokens of another file, such as a PDF of a few pages. */
const DOCUMENT_TOKENS = 5_000
const CHARS_PER_TOKEN = 4
/** A call and its results are one message in opencode and two in the transcript; this ends the second one's handle. */
const RESULTS_SUFFIX = '/results'
/** opencode adds such a part to the newest prompt of each request and does not store it, so it may be gone in the next. */
const REMINDER_START = '<system-reminder>'
/** What opencode sends in place of these kinds of parts. */
const TEXTS_OF_OTHER_PARTS = {
  compaction: 'What did we do so far?',
  subtask: 'The following tool was executed by the user',
}
const CLEARED_RESULT = '[Old tool result content cleared]'
const INTERRUPTED_RESULT = '[Tool execution was interrupted]'

/** The answer does not fit the messages: they are sent as the host has them. */
export class UnusableAnswer extends Error {}

/**
 * Return the transcript of `messages`, without those that opencode does not send either.
 *
 * @param {HostMessage[]} messages
 */
export function writeTranscript(messages) {
  return messages.filter(isSent).flatMap(message => (message.info.role === 'user' ? [writePrompt(message)] : writeStep(message)))
}

/**
 * Return about how many tokens a transcript has.
 *
 * @param {ReturnType<typeof writeTranscript>} transcript
 */
export function estimateTokens(transcript) {
  const hiddenTokens = transcript.reduce((sum, message) => sum + (message.hiddenTokens ?? 0), 0)
  const texts = transcript.map(({ text, toolUses, toolResults }) => ({ text, toolUses, toolResults }))
  return hiddenTokens + Math.ceil(JSON.stringify(texts).length / CHARS_PER_TOKEN)
}

/** @param {HostMessage} message */
function isSent({ info, parts }) {
  if (info.role === 'user') return parts.some(part => isText(part) || countHiddenTokens(part) > 0)
  if (info.role !== 'assistant') return false
  const hasContent = parts.some(part => isText(part) || part.type === 'tool' || part.type === 'reasoning')
  if (!info.error) return hasContent
  // Of answers that failed, opencode sends only those that the user stopped after something had been said or done.
  const isStopped = info.error.name === 'MessageAbortedError'
  return hasContent && isStopped && parts.some(part => !['step-start', 'reasoning'].includes(part.type))
}

/** @param {HostMessage} message */
function writePrompt({ info, parts }) {
  return { handle: info.id, role: 'user', text: joinTexts(parts), ...writeHiddenTokens(parts) }
}

/** @param {HostMessage} message */
function writeStep({ info, parts }) {
  const calls = parts.filter(part => part.type === 'tool')
  const toolUses = calls.map(({ callID, tool, state }) => ({ tool_use_id: callID, tool, input: state.input ?? {} }))
  const answer = { handle: info.id, role: 'assistant', text: joinTexts(parts), toolUses, ...writeUsage(info) }
  if (calls.length === 0) return [{ ...answer, ...writeHiddenTokens(parts) }]
  const others = parts.filter(part => part.type !== 'tool')
  const results = { handle: info.id + RESULTS_SUFFIX, role: 'user', toolResults: calls.map(writeResult) }
  return [
    { ...answer, ...writeHiddenTokens(others) },
    { ...results, ...writeHiddenTokens(calls) },
  ]
}

/** What the provider counted for the request that was answered. @param {Record<string, any>} info */
function writeUsage({ summary, tokens }) {
  // The summary of opencode's own compaction answered another request.
  if (summary || !(tokens?.output > 0)) return {}
  const { input, output, reasoning = 0, cache } = tokens
  return { usage: { input, output: output + reasoning, cacheRead: cache?.read ?? 0, cacheWrite: cache?.write ?? 0 } }
}

/** @param {Record<string, any>} part */
function writeResult({ callID, state }) {
  const isError = state.status !== 'completed' && readInterruptedOutput(state) === undefined
  return { tool_use_id: callID, text: readResultText(state), isError }
}

/** @param {Record<string, any>} state */
function readResultText(state) {
  if (state.status === 'completed') return state.time?.compacted ? CLEARED_RESULT : String(state.output)
  if (state.status === 'error') return readInterruptedOutput(state) ?? String(state.error)
  return INTERRUPTED_RESULT
}

/**
 * What a command had written until the user stopped it.
 *
 * @param {Record<string, any>} state
 */
function readInterruptedOutput({ status, metadata }) {
  const isInterrupted = status === 'error' && metadata?.interrupted === true
  return isInterrupted && typeof metadata.output === 'string' ? metadata.output : undefined
}

/** @param {Record<string, any>[]} parts */
function joinTexts(parts) {
  return parts.filter(isText).map(readText).join('\n')
}

/** @param {Record<string, any>} part */
function isText(part) {
  if (part.type === 'text') return part.text !== '' && !part.ignored && !isReminder(part)
  return part.type in TEXTS_OF_OTHER_PARTS
}

/** @param {Record<string, any>} part */
function readText(part) {
  return part.type === 'text' ? part.text : TEXTS_OF_OTHER_PARTS[part.type]
}

/** @param {Record<string, any>} part */
function isReminder(part) {
  return part.type === 'text' && part.synthetic === true && part.text.startsWith(REMINDER_START)
}

/** @param {Record<string, any>[]} parts */
function writeHiddenTokens(parts) {
  const hiddenTokens = parts.map(countHiddenTokens).reduce((sum, tokens) => sum + tokens, 0)
  return hiddenTokens > 0 ? { hiddenTokens } : {}
}

/** @param {Record<string, any>} part */
function countHiddenTokens(part) {
  if (part.type === 'reasoning' || isReminder(part)) return Math.ceil(part.text.length / CHARS_PER_TOKEN)
  if (part.type === 'file') return countFileTokens(part)
  if (part.type !== 'tool' || part.state.status !== 'completed' || part.state.time?.compacted) return 0
  return (part.state.attachments ?? []).map(countFileTokens).reduce((sum, tokens) => sum + tokens, 0)
}

/** @param {Record<string, any>} file */
function countFileTokens({ mime = '' }) {
  // opencode adds the text of these as a part of its own.
  if (mime === 'text/plain' || mime === 'application/x-directory') return 0
  return mime.startsWith('image/') ? IMAGE_TOKENS : DOCUMENT_TOKENS
}

/**
 * Return what `rows` say to show: the host's messages, or copies of them with other texts, and new messages.
 *
 * Nothing in `messages` is changed. Throws `UnusableAnswer` where `rows` are not of these messages in their order, or
 * would part a call from its result.
 *
 * @param {HostMessage[]} messages
 * @param {AnswerRow[]} rows
 */
export function showMessages(messages, rows) {
  const positionById = new Map(messages.map((message, position) => [message.info.id, position]))
  /** @type {HostMessage[]} */
  const shown = []
  let lastPosition = -1
  /** The id of the step whose results must come next. @type {string | undefined} */
  let openStep
  for (const row of rows) {
    const isResults = row?.handle?.endsWith(RESULTS_SUFFIX) === true
    const id = isResults ? row.handle.slice(0, -RESULTS_SUFFIX.length) : row?.handle
    if (isResults) {
      if (openStep !== id) throw new UnusableAnswer('its answer has results without their calls')
      openStep = undefined
      shown.push(replaceResults(shown.pop(), row.toolResults ?? []))
      continue
    }
    if (openStep !== undefined) throw new UnusableAnswer('its answer has calls without their results')
    if (id === undefined) {
      shown.push(makePrompt(row, messages, shown.length))
      continue
    }
    const position = positionById.get(id)
    if (position === undefined) throw new UnusableAnswer(`its answer names a message that is not there: ${id}`)
    if (position <= lastPosition) throw new UnusableAnswer('its answer has messages in another order')
    lastPosition = position
    const message = messages[position]
    if (message.parts.some(part => part.type === 'tool')) openStep = id
    shown.push(row.text === undefined ? message : replaceText(message, row.text))
  }
  if (openStep !== undefined) throw new UnusableAnswer('its answer has calls without their results')
  if (shown.length === 0) throw new UnusableAnswer('its answer has no messages')
  return shown
}

/**
 * @param {AnswerRow} row
 * @param {HostMessage[]} messages
 * @param {number} number
 * @returns {HostMessage}
 */
function makePrompt(row, messages, number) {
  if (row?.role !== 'user' || typeof row.text !== 'string' || row.text === '') {
    throw new UnusableAnswer('its answer has a new message that is no text of the user')
  }
  const { sessionID } = messages[0].info
  const newest = messages.findLast(({ info }) => info.role === 'user')?.info
  const id = `msg_holdfast_${number}`
  return {
    info: { id, sessionID, role: 'user', time: { created: 0 }, agent: newest?.agent, model: newest?.model },
    parts: [{ id: `prt_holdfast_${number}`, sessionID, messageID: id, type: 'text', text: row.text, synthetic: true }],
  }
}

/**
 * @param {HostMessage} message
 * @param {string} text
 * @returns {HostMessage}
 */
function replaceText(message, text) {
  const first = message.parts.find(isText)
  if (first === undefined) throw new UnusableAnswer('its answer has a text for a message without one')
  const { id, sessionID, messageID } = first
  const replacement = { id, sessionID, messageID, type: 'text', text: checkText(text) }
  const parts = message.parts.filter(part => part === first || !isText(part))
  return { ...message, parts: parts.map(part => (part === first ? replacement : part)) }
}

/**
 * @param {HostMessage} message
 * @param {ToolResult[]} results
 * @returns {HostMessage}
 */
function replaceResults(message, results) {
  if (results.length === 0) return message
  const textByCall = new Map(results.map(result => [result.tool_use_id, checkText(result.text)]))
  const parts = message.parts.map(part => {
    const text = part.type === 'tool' ? textByCall.get(part.callID) : undefined
    return text === undefined ? part : { ...part, state: replaceResult(part.state, text) }
  })
  const callIds = message.parts.map(part => part.callID)
  if (results.some(result => !callIds.includes(result.tool_use_id))) {
    throw new UnusableAnswer('its answer has the result of a call that is not there')
  }
  return { ...message, parts }
}

/**
 * @param {Record<string, any>} state
 * @param {string} text
 */
function replaceResult(state, text) {
  if (state.status === 'completed') return { ...state, output: text }
  if (readInterruptedOutput(state) !== undefined) return { ...state, metadata: { ...state.metadata, output: text } }
  return { ...state, status: 'error', error: text }
}

/** @param {unknown} text */
function checkText(text) {
  if (typeof text !== 'string') throw new UnusableAnswer('its answer has a replacement that is no text')
  return text
}
