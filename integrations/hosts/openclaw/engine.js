/** The context engine: before each request Holdfast says which of OpenClaw's messages to send, and how. */

import { applyPlan, completeMessages, describeMessages, estimateTokens, isSameMessage } from './conversation.js'

/** Characters of an error that the notice quotes. */
const MAX_WHY_CHARS = 300
const INFO = /** @type {const} */ ({
  id: 'holdfast',
  name: 'Holdfast',
  ownsCompaction: true,
  // OpenClaw uses an engine for the turns that it records only with both. This engine keeps nothing of its own.
  transcriptSemantics: {
    currentTurnFence: 'before-current-turn-entry-v1',
    turnAdvancementIdempotency: 'atomic-idempotent-v1',
  },
})
/** The names that Holdfast has for what OpenClaw calls the API of a model. */
const API_NAMES = {
  'anthropic-messages': 'anthropic',
  'openai-completions': 'openai-chat',
  'openai-responses': 'openai-responses',
  'google-generative-ai': 'gemini',
}

/**
 * One engine serves one turn of one session, or one compaction.
 *
 * `host` is what OpenClaw offers: `readTranscript(params)`, `delegateCompaction(params)`, `describeMemory(params)`.
 * `say(text)` shows a line to the user, each text once.
 */
export class HoldfastEngine {
  info = INFO
  #server
  #host
  #say
  /** What is shown of the history before this turn, what OpenClaw hands over for it, and the budget it was made for. */
  #shown
  /** The transcript with the running turn, as a compaction read it: the retry is handed only a part. */
  #transcript

  constructor(server, host, say) {
    this.#server = server
    this.#host = host
    this.#say = say
  }

  /** Messages reach Holdfast with the next `assemble`, which has all of them. */
  async ingest() {
    return { ingested: false }
  }

  /** As `ingest`. Committing the same turn twice changes nothing, since nothing is kept here. */
  async commitTurn() {
    return { status: /** @type {const} */ ('committed') }
  }

  /** Return the messages to send. Whatever goes wrong, they are OpenClaw's own, as they are. */
  async assemble(params) {
    const assembled = params.messages.length === 0 ? { messages: params.messages, estimatedTokens: 0 } : await this.#assemble(params)
    // Only the built-in engine gets the part of the system prompt about memory without asking for it.
    const systemPromptAddition = this.#host.describeMemory(params)
    return { ...assembled, ...(systemPromptAddition !== undefined && { systemPromptAddition }) }
  }

  async #assemble(params) {
    if (this.#shown !== undefined && isSameList(params.messages, this.#shown.handedOver)) return this.#assembleAgain(params)
    const messages = await this.#completeMessages(params)
    try {
      const window = readWindow(params)
      const { shown } = await this.#plan(params, messages, { window })
      const handedOver = shown.messages
      this.#shown = { ...shown, handedOver, conversation: messages, budget: params.tokenBudget, window, isHalved: false }
      return { messages: shown.messages, estimatedTokens: shown.tokens }
    } catch (error) {
      this.#shown = undefined
      this.#explain('Holdfast did not plan the request', error, 'OpenClaw sends its own messages as they are')
      return { messages, estimatedTokens: estimateTokens(messages) }
    }
  }

  /**
   * Within a turn OpenClaw hands over what was shown at its start, and a budget less what the turn has added since.
   *
   * The messages of the turn itself are not handed over, so only what lies before it can get smaller. That is done once,
   * and to half of the window: a little at every step would break the provider's cache at every step.
   */
  async #assembleAgain(params) {
    const shown = this.#shown
    const limit = params.runtimeSettings?.limits?.promptTokenBudget
    const addedTokens = limit > 0 && params.tokenBudget > 0 ? limit - params.tokenBudget : 0
    const isTooLarge = shown.budget > 0 && shown.tokens + addedTokens > shown.budget
    if (isTooLarge && !shown.isHalved) {
      shown.isHalved = true
      try {
        const again = await this.#plan(params, shown.conversation, { window: shown.window / 2 })
        Object.assign(shown, again.shown)
      } catch {
        // What was shown before is valid; if it is too large, the provider says so, and a compaction follows.
      }
    }
    return { messages: shown.messages, estimatedTokens: shown.tokens }
  }

  /**
   * Compact now: the user asked for it, or the provider refused a request for its length.
   *
   * OpenClaw then assembles the messages anew, and Holdfast shows what was decided here. Without Holdfast OpenClaw's own
   * compaction is done, since nobody else would.
   */
  async compact(params) {
    this.#shown = undefined
    try {
      const messages = await this.#host.readTranscript(params)
      const { plan } = await this.#plan(params, messages, { window: params.tokenBudget, force: true })
      const { tokensBefore, tokensAfter } = plan
      if (plan.isCompacted) {
        this.#transcript = messages
        return { ok: true, compacted: true, result: { tokensBefore, tokensAfter } }
      }
      const reason = plan.notices?.[0] ?? 'there is nothing to compact'
      if (params.runtimeContext?.trigger === 'manual') return { ok: true, compacted: false, reason }
      throw new Error(reason)
    } catch (error) {
      if (params.abortSignal?.aborted) throw error
      this.#explain('Holdfast did not compact', error, 'OpenClaw writes its own summary instead')
      return this.#host.delegateCompaction(params)
    }
  }

  async #plan(params, messages, { window, force }) {
    if (messages.length === 0) throw new Error('there are no messages')
    const { rows, ownMessages } = describeMessages(messages)
    const fields = { messages: rows, window: toTokens(window), model: params.model, api: findApi(messages), force }
    const plan = await this.#server.plan(params.sessionId, fields, params.abortSignal)
    for (const notice of plan.notices ?? []) this.#say(`Holdfast: ${notice}`)
    const shownMessages = applyPlan(plan.messages, ownMessages, messages[0].timestamp)
    return { plan, shown: { messages: shownMessages, tokens: plan.tokensAfter } }
  }

  async #completeMessages(params) {
    try {
      const transcript = this.#transcript ?? (await this.#host.readTranscript(params))
      return completeMessages(params.messages, transcript)
    } catch {
      return params.messages
    }
  }

  #explain(what, error, instead) {
    const why = (error instanceof Error ? error.message : String(error)).slice(0, MAX_WHY_CHARS)
    this.#say(`${what} (${why}); ${instead}.`)
  }
}

/** OpenClaw's budget is of the messages alone: the window less the system prompt, the prompt and a reserve. */
function readWindow(params) {
  const reserve = params.runtimeSettings?.limits?.maxOutputTokens ?? 0
  return params.tokenBudget === undefined ? undefined : params.tokenBudget + reserve
}

function toTokens(number) {
  return Number.isFinite(number) && number >= 1 ? Math.floor(number) : undefined
}

/** The API that answered last. */
function findApi(messages) {
  const answer = messages.findLast(message => message.role === 'assistant' && message.api !== undefined)
  return API_NAMES[answer?.api]
}

function isSameList(messages, others) {
  return messages.length === others.length && messages.every((message, index) => isSameMessage(message, others[index]))
}
