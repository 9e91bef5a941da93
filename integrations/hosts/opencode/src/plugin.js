/**
 * Holdfast in opencode: before each request, `POST /v1/plan` of a running `holdfast serve` says what to show.
 *
 * Only the request changes; opencode's stored history stays whole. Whatever goes wrong, opencode goes on with its own
 * messages, and says so once.
 */

import { createNotices } from './notices.js'
import { recallTool } from './recall.js'
import { askHoldfast, getServerUrl, NoAnswer } from './server.js'
import { estimateTokens, showMessages, UnusableAnswer, writeTranscript } from './transcript.js'
import { computeWindow, createModelReader } from './window.js'

/** Tokens of system prompt and tools until an answer of the provider says how many: about those of opencode 1.18.33. */
const DEFAULT_SETUP_TOKENS = 8_000
/** How long nothing is asked after an answer took too long, so that not every request waits for it. */
const PAUSE_MS = 60_000
/** Ends the extract that opencode's own compaction summarizes. */
const SUMMARY_ADVICE = "Carry this extract's rules and words of the user, and what is still open, into the summary word for word."

/** Words of providers for a request over the window. */
const TOO_LONG = /context (limit|length|window)|(prompt|input|request) is too (long|large)|too many (input )?tokens/i

/**
 * @typedef {import('./transcript.js').HostMessage} HostMessage
 * @typedef {import('./transcript.js').AnswerRow} AnswerRow
 *
 * @typedef {object} LastAnswer
 * @property {string[]} handles The handles of the transcript.
 * @property {AnswerRow[]} rows Holdfast's answer to it.
 */

/**
 * @param {Record<string, any>} input What opencode gives a plugin.
 * @param {{ timeoutMs?: number }} [options] What the user's configuration gives it.
 */
async function createHooks({ client }, { timeoutMs } = {}) {
  /** The newest answer for each session. @type {Map<string, LastAnswer>} */
  const lastAnswers = new Map()
  /** Sessions whose messages come next for opencode's own compaction. @type {Set<string>} */
  const compactingSessions = new Set()
  const { say, sayOnce } = createNotices(client)
  const readModel = createModelReader(client)
  /** @type {number | undefined} */
  let reservedTokens
  let pausedUntil = 0

  /** @param {string} path @param {object} body */
  async function ask(path, body) {
    if (Date.now() < pausedUntil) throw new NoAnswer('its last answer took too long; see `holdfast doctor`')
    try {
      return await askHoldfast(path, body, 'messages', timeoutMs)
    } catch (error) {
      if (error.isLate) pausedUntil = Date.now() + PAUSE_MS
      throw error
    }
  }

  /** What the next request shows of `messages`. @param {HostMessage[]} messages */
  async function planRequest(messages) {
    const transcript = writeTranscript(messages)
    if (transcript.length === 0) return messages
    const { sessionID } = messages[0].info
    const model = findModel(messages)
    const { limit, address } = await readModel(model)
    // A proxy that is the provider's address already plans what it sends.
    if (address?.startsWith(getServerUrl())) return messages
    const handles = transcript.map(({ handle }) => handle)
    try {
      const answer = await ask('/v1/plan', {
        client: 'opencode',
        session: sessionID,
        messages: transcript,
        model: model?.modelID,
        window: computeWindow(limit, reservedTokens),
        setupTokens: measureSetup(messages) ?? DEFAULT_SETUP_TOKENS,
        force: wasRefusedForLength(messages),
      })
      const shownMessages = showMessages(messages, answer.messages)
      lastAnswers.set(sessionID, { handles, rows: answer.messages })
      if (answer.isCompacted) say(describeCompaction(answer), 'info')
      for (const notice of answer.notices ?? []) sayOnce(`Holdfast: ${notice}`)
      return shownMessages
    } catch (error) {
      sayOnce(describeFailure(error, 'opencode goes on without it'))
      return showAsBefore(lastAnswers.get(sessionID), messages, handles)
    }
  }

  /** What opencode's own compaction summarizes: an extract in place of the older messages. */
  async function extractOlder(messages) {
    const transcript = writeTranscript(messages)
    if (transcript.length === 0) return messages
    try {
      const { limit } = await readModel(findModel(messages))
      const window = computeWindow(limit, reservedTokens)
      const isRecorded = lastAnswers.has(messages[0].info.sessionID)
      const answer = await ask('/v1/compact', { messages: transcript, window, isRecorded })
      // What is kept comes back as it went, so only its handle counts; all of it, if there is nothing to gain.
      const rows = answer.messages.map(({ handle, role, text }) =>
        handle === undefined ? { role, text: `${text}\n\n${SUMMARY_ADVICE}` } : { handle },
      )
      return showMessages(messages, rows)
    } catch (error) {
      sayOnce(describeFailure(error, 'opencode writes its summary without it'))
      return messages
    }
  }

  return {
    config: async config => {
      reservedTokens = config.compaction?.reserved
    },
    'experimental.session.compacting': async ({ sessionID }) => {
      compactingSessions.add(sessionID)
    },
    'experimental.chat.messages.transform': async (_, { messages }) => {
      const isCompaction = compactingSessions.delete(messages[0]?.info.sessionID)
      if (messages.length === 0) return
      try {
        const shown = await (isCompaction ? extractOlder(messages) : planRequest(messages))
        // opencode reads this array, and nothing that would be put in its place.
        messages.splice(0, messages.length, ...shown)
      } catch (error) {
        // An error would end the user's session.
        sayOnce(describeFailure(error, 'opencode goes on without it'))
      }
    },
    tool: { recall: recallTool },
  }
}

/**
 * Return the tokens of system prompt and tools: what the provider counted for the first request, less its messages.
 * Undefined where that cannot be said.
 *
 * Of the first request and not of the newest, because Holdfast takes another number for another system prompt, which
 * would have cost the prompt cache.
 *
 * @param {HostMessage[]} messages
 */
function measureSetup(messages) {
  const position = messages.findIndex((message, index) => isFirstOf(messages.slice(0, index), message))
  if (position < 0) return undefined
  const { input, cache } = messages[position].info.tokens
  const requestTokens = input + (cache?.read ?? 0) + (cache?.write ?? 0)
  const setupTokens = requestTokens - estimateTokens(writeTranscript(messages.slice(0, position)))
  return setupTokens > 0 ? setupTokens : undefined
}

/**
 * Whether `message` is the answer to a request with just the messages `before`. After opencode's own compaction, what
 * it kept stands behind the summary; those answers are older, and were given to larger requests.
 *
 * @param {HostMessage[]} before
 * @param {HostMessage} message
 */
function isFirstOf(before, { info }) {
  const isAnswered = info.role === 'assistant' && !info.summary && info.tokens?.output > 0
  return isAnswered && before.every(message => message.info.id < info.id)
}

/**
 * What Holdfast decided last still holds for the messages that it was asked about, so that a server that restarts
 * costs neither the prompt cache nor the window.
 *
 * @param {LastAnswer | undefined} answer
 * @param {HostMessage[]} messages
 * @param {string[]} handles
 */
function showAsBefore(answer, messages, handles) {
  if (answer === undefined || !answer.handles.every((handle, index) => handle === handles[index])) return messages
  const newRows = handles.slice(answer.handles.length).map(handle => ({ handle }))
  try {
    return showMessages(messages, [...answer.rows, ...newRows])
  } catch {
    return messages
  }
}

/** @param {HostMessage[]} messages */
function findModel(messages) {
  return messages.findLast(({ info }) => info.role === 'user')?.info.model
}

/**
 * Whether the newest request was refused for its length and opencode did not compact: because it must not, or because
 * it does not know these words of the provider.
 *
 * @param {HostMessage[]} messages
 */
function wasRefusedForLength(messages) {
  const error = messages.findLast(({ info }) => info.role === 'assistant')?.info.error
  return error?.name === 'ContextOverflowError' || (error?.name === 'APIError' && TOO_LONG.test(error.data?.message))
}

/** @param {{ tokensBefore: number, tokensAfter: number }} answer */
function describeCompaction({ tokensBefore, tokensAfter }) {
  return `Holdfast compacted: requests show ${format(tokensAfter)} of ${format(tokensBefore)} tokens of messages.`
}

/** @param {unknown} error @param {string} consequence */
function describeFailure(error, consequence) {
  const isExplained = error instanceof NoAnswer || error instanceof UnusableAnswer
  const why = isExplained ? error.message : `the plugin failed: ${error}; update Holdfast and the plugin`
  return `Holdfast does not help here (${why}); ${consequence}.`
}

/** @param {number} number */
function format(number) {
  return number.toLocaleString('en-US')
}

export default { id: 'holdfast', server: createHooks }
