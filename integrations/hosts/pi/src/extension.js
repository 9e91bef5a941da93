/**
 * Holdfast for pi: `holdfast serve` on this machine decides what each request shows, and this extension applies it.
 *
 * - Before each call of the model, pi's messages go to `/v1/plan`. Its answer says which are sent as they are, which
 *   with shorter texts, and which an extract stands for. pi's session file stays as it is.
 * - When pi compacts (`/compact`, its threshold, an overflow), `/v1/compact` writes the summary. pi saves it, calls no
 *   model, and from then on plans start from it.
 *
 * The two seldom meet: pi's threshold looks at what the last request took, and plans keep that below it but in small
 * windows or after large results. Where it comes due, pi gets an extract too; a refusal would be reported as a cancelled
 * compaction after every turn.
 *
 * Whatever goes wrong, pi goes on as if this extension were not there, and one line says why, once for each reason.
 */

import { applyAnswer, describeMessage, describeMessages } from './messages.js'
import { readBack, RECALL_TOOL } from './recall.js'
import { HoldfastServer } from './server.js'

/** Holdfast's names of the APIs that pi speaks; for any other the model's name has to do. */
const API_NAMES = {
  'anthropic-messages': 'anthropic',
  'openai-completions': 'openai-chat',
  'openai-responses': 'openai-responses',
  'openai-codex-responses': 'openai-responses',
  'azure-openai-responses': 'openai-responses',
  'google-generative-ai': 'gemini',
  'google-vertex': 'gemini',
}
/** Characters a token in system prompt and tools: prose and JSON. What answers took corrects it on the server. */
const SETUP_CHARS_PER_TOKEN = 3.5

/** Anthropic's words where input and `max_tokens` together are too long. pi 1.6.0 does not know them. */
const UNKNOWN_OVERFLOW = /exceeds? context limit/i

const OTHER_VERSION = 'its answer is of another version; update Holdfast and this extension'

/** Register everything at `pi`. `isContextOverflow` is pi's own: it knows the words of each provider. */
export function registerHoldfast(pi, isContextOverflow) {
  const server = new HoldfastServer()
  const said = new Set()
  /** The newest plan and the messages it was made for. @type {{described: object[], answer: object} | undefined} */
  let newest
  /** Tokens of messages in the request that pi is sending, if it was planned. @type {number | undefined} */
  let plannedTokens
  /** Tokens of a request that the provider refused for its length, by model: its window is smaller than pi believes. */
  const refusedTokens = new Map()
  let compactions = 0
  let lastCompaction = ''

  pi.registerTool({
    ...RECALL_TOOL,
    execute: (_id, given, signal, _onUpdate, ctx) => readBack(server, nameSession(ctx), given, signal),
  })

  pi.on('context', async (event, ctx) => {
    plannedTokens = undefined
    if (isProxied(ctx)) return undefined
    const described = describeMessages(event.messages)
    if (described.length === 0) return undefined
    try {
      const answer = await server.post('/v1/plan', makePlanRequest(described, ctx), ctx.signal)
      const messages = applyAnswer(event.messages, described, readMessages(answer))
      newest = { described, answer }
      plannedTokens = answer.tokensAfter
      showPlan(ctx, answer)
      return messages && { messages }
    } catch (error) {
      if (ctx.signal?.aborted) return undefined
      sayOnce(ctx, `Holdfast did not plan this request (${explain(error)}); pi goes on without it.`, 'warning')
      const messages = applyNewestAgain(event.messages, described)
      return messages && { messages }
    }
  })

  pi.on('message_end', async (event, ctx) => {
    const { message } = event
    if (message.role !== 'assistant' || plannedTokens === undefined) return
    const isTooLong = isContextOverflow(message) || UNKNOWN_OVERFLOW.test(message.errorMessage ?? '')
    if (message.stopReason !== 'error' || !isTooLong) return
    // The smaller of two estimates: pi's has what the provider counted, ours has what was really sent.
    const tokens = Math.min(plannedTokens + estimateSetup(pi, ctx), ctx.getContextUsage()?.tokens ?? Infinity)
    refusedTokens.set(ctx.model?.id, tokens)
  })

  pi.on('session_before_compact', async (event, ctx) => {
    if (isProxied(ctx)) return undefined
    try {
      const { answer, firstKept } = await askForCompaction(ctx, event.customInstructions, event.signal)
      compactions += 1
      lastCompaction = describeCompaction(answer)
      say(ctx, lastCompaction)
      const { tokensBefore, tokensAfter, kept } = answer
      return {
        compaction: {
          summary: answer.messages[0].text,
          firstKeptEntryId: firstKept,
          tokensBefore: event.preparation.tokensBefore,
          details: { holdfast: { tokensBefore, tokensAfter, ...kept } },
        },
      }
    } catch (error) {
      if (event.signal?.aborted) return undefined
      if (error instanceof NothingCompacted && event.reason === 'threshold') {
        sayOnce(ctx, `Holdfast shortens the next request in place of a compaction (${explain(error)}).`, 'info', 'shortens')
        return { cancel: true } // a plan can shorten the newest results, which a compaction has to leave whole
      }
      sayOnce(ctx, `Holdfast did not compact (${explain(error)}); pi writes its own summary instead.`, 'warning')
      return undefined
    }
  })

  pi.registerCommand('holdfast', {
    description: 'What requests hold now, what was saved, and what a compaction would leave',
    handler: async (_args, ctx) => say(ctx, await report(ctx)),
  })

  function makePlanRequest(described, ctx) {
    return {
      ...nameSession(ctx),
      messages: described,
      ...(ctx.model && { model: ctx.model.id }),
      ...(API_NAMES[ctx.model?.api] && { api: API_NAMES[ctx.model.api] }),
      ...nameWindow(ctx),
      setupTokens: estimateSetup(pi, ctx),
    }
  }

  function nameWindow(ctx) {
    const window = Math.min(ctx.model?.contextWindow || Infinity, refusedTokens.get(ctx.model?.id) ?? Infinity)
    return window === Infinity ? {} : { window }
  }

  /** Whether the requests go through a Holdfast proxy anyway, which does the same and more. */
  function isProxied(ctx) {
    const isOurs = `${ctx.model?.baseUrl ?? ''}/`.startsWith(`${server.url}/`)
    if (isOurs) sayOnce(ctx, "Holdfast's proxy gets these requests already; the extension leaves them to it.", 'info')
    return isOurs
  }

  /**
   * Return the messages as the newest plan had them, with what came since as it is; undefined if it does not fit.
   *
   * A session that was reduced may no longer fit the window whole. One answer that is late must not bring it all back.
   */
  function applyNewestAgain(messages, described) {
    if (newest === undefined || newest.described.length > described.length) return undefined
    const isSame = newest.described.every((one, index) => JSON.stringify(one) === JSON.stringify(described[index]))
    if (!isSame) return undefined
    const added = described.slice(newest.described.length).map(one => one.handle)
    return applyAnswer(messages, described, newest.answer.messages, added)
  }

  function showPlan(ctx, answer) {
    for (const notice of answer.notices ?? []) sayOnce(ctx, `Holdfast: ${notice}`, 'info', notice.replaceAll(/\d/g, ''))
    const { tokensBefore, tokensAfter } = answer
    if (answer.isCompacted) {
      compactions += 1
      lastCompaction = `Holdfast compacted the next request: ${format(tokensBefore)} → ${format(tokensAfter)} tokens of messages.`
      say(ctx, lastCompaction)
    }
    const text = tokensAfter < tokensBefore ? `holdfast: ${format(tokensAfter)} of ${format(tokensBefore)} tokens sent` : 'holdfast'
    ctx.ui.setStatus('holdfast', text)
  }

  /** Compact pi's session as its file has it. Throws if the answer is no compaction that pi can save. */
  async function askForCompaction(ctx, instructions, signal) {
    const entries = ctx.sessionManager.buildSessionProjection().entries
    const described = entries.flatMap(({ sourceEntry, messages }) =>
      messages.map(message => describeMessage(message, sourceEntry.id)).filter(one => one !== undefined),
    )
    const answer = await server.post(
      '/v1/compact',
      {
        messages: described,
        ...nameWindow(ctx),
        ...(instructions && { instructions }),
        isRecorded: Boolean(newest?.answer.sessionKey),
      },
      signal,
    )
    const [extract, ...kept] = readMessages(answer)
    if (typeof answer.kept !== 'object') throw new Error(OTHER_VERSION)
    if (answer.why) throw new NothingCompacted(answer.why)
    if (extract?.handle !== undefined || typeof extract?.text !== 'string' || extract.text === '') {
      throw new Error('its answer has no extract')
    }
    const tail = kept.length === 0 ? [] : described.slice(-kept.length)
    const isTail = kept.length > 0 && kept.every((one, index) => one.handle === tail[index]?.handle)
    if (!isTail || tail[0].toolResults !== undefined) throw new Error('its answer is not of the newest messages')
    return { answer, firstKept: tail[0].handle }
  }

  async function report(ctx) {
    const lines = [lastCompaction || 'No compaction by Holdfast since pi started.']
    if (compactions > 1) lines.push(`${compactions} compactions since pi started.`)
    if (newest !== undefined) {
      const { tokensBefore, tokensAfter } = newest.answer
      lines.push(`The last request had ${format(tokensAfter)} of ${format(tokensBefore)} tokens of messages.`)
    }
    const usage = ctx.getContextUsage()
    if (usage?.tokens != null) lines.push(`Context now: ${format(usage.tokens)} of ${format(usage.contextWindow)} tokens.`)
    try {
      const { answer } = await askForCompaction(ctx)
      const sizes = `${format(answer.tokensAfter)} of ${format(answer.tokensBefore)} tokens of messages`
      lines.push(`/compact would leave ${sizes}: an extract and the newest ${answer.kept.messages} messages.`)
    } catch (error) {
      lines.push(`/compact now: ${explain(error)}.`)
    }
    return lines.join('\n')
  }

  function say(ctx, text, level = 'info') {
    if (ctx.hasUI) ctx.ui.notify(text, level)
    else console.error(text) // print mode has no notices, and its output is the answer alone
  }

  /** Say something once for each `reason`, which leaves out what differs from request to request. */
  function sayOnce(ctx, text, level, reason = text) {
    if (said.has(reason)) return
    said.add(reason)
    say(ctx, text, level)
  }
}

/** Holdfast is there, and says why a compaction would not help. */
class NothingCompacted extends Error {}

function readMessages(answer) {
  const { messages, tokensBefore, tokensAfter } = answer
  const isWhole = Array.isArray(messages) && typeof tokensBefore === 'number' && typeof tokensAfter === 'number'
  if (!isWhole) throw new Error(OTHER_VERSION)
  return messages
}

function estimateSetup(pi, ctx) {
  const active = new Set(pi.getActiveTools())
  const tools = pi.getAllTools().filter(tool => active.has(tool.name))
  const declarations = tools.map(({ name, description, parameters }) => ({ name, description, parameters }))
  return Math.ceil((ctx.getSystemPrompt().length + JSON.stringify(declarations).length) / SETUP_CHARS_PER_TOKEN)
}

const nameSession = ctx => ({ client: 'pi', session: ctx.sessionManager.getSessionId() })

function describeCompaction({ tokensBefore, tokensAfter, kept }) {
  const sizes = `${format(tokensBefore)} → ${format(tokensAfter)} tokens of messages`
  const open = kept.openItems > 0 ? `, ${kept.openItems} open items named` : ''
  return `Holdfast compacted: ${sizes}; ${kept.messages} messages unchanged, ${kept.replaced} in the extract${open}.`
}

function format(tokens) {
  return tokens.toLocaleString('en')
}

function explain(error) {
  return error instanceof Error ? error.message : String(error)
}
