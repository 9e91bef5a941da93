import type { EngineInterface, Register, SessionCompactInput, SessionMessage } from 'claude-code'

/**
 * Compaction by Holdfast: `holdfast compact --stdin` decides, and the messages it keeps go back as the engine's own.
 *
 * Whatever goes wrong, Claude Code's own summary is made as if this plugin were not there, and one line says why.
 */

/** How long Holdfast may take. It needs about a second for the largest transcripts; after this nobody waits for it. */
const TIMEOUT_MS = 20_000
/** Characters of an error that the notice quotes. */
const MAX_WHY_CHARS = 300

type Compacted = {
  messages: readonly { text?: unknown; handle?: unknown }[]
  tokensBefore: number
  tokensAfter: number
  kept: { messages: number; replaced: number; openItems: number }
  why?: string
}

/** What this session's compactions did, for /holdfast. */
type Totals = { compactions: number; saved: number; last: string }

export const register: Register = on => {
  const saidReasons = new Set<string>()
  const totals: Totals = { compactions: 0, saved: 0, last: '' }
  let isHoldfastThere: boolean | undefined
  let transcriptPath: string | undefined

  on('session.compact', async ($, e, next) => {
    if (e.trigger === 'precompute') {
      // A summary in advance costs a call to the model, and ours would take its place anyway.
      isHoldfastThere ??= await canRunHoldfast($)
      return isHoldfastThere ? { skip: 'Holdfast compacts when it is due, without a model' } : next(e)
    }
    try {
      const compacted = await recordAndCompact($, e, transcriptPath)
      const messages = restoreOwnMessages(e.messages, compacted)
      isHoldfastThere = true
      totals.last = describe(compacted)
      totals.compactions += 1
      totals.saved += compacted.tokensBefore - compacted.tokensAfter
      $.ui.log(totals.last)
      $.ui.status(`holdfast: ${format(totals.saved)} tokens saved`)
      return { messages, ...(await measure($, compacted)) }
    } catch (error) {
      isHoldfastThere = false
      const why = (error instanceof Error ? error.message : String(error)).slice(0, MAX_WHY_CHARS)
      if (!saidReasons.has(why)) $.ui.log(`Holdfast did not compact (${why}); Claude Code writes its own summary instead.`)
      saidReasons.add(why)
      return next(e)
    }
  }).catch(($, e, next) => next(e)) // also where the engine ends this hook, for example because it took too long

  on('classic.SessionStart', async ($, e, next) => {
    transcriptPath = e.transcript_path
    return next(e)
  }).catch(($, e, next) => next(e))

  on('session.start', async ($, e, next) => {
    try {
      await $.command.register({
        name: 'holdfast',
        description: 'What compactions kept and saved, and what one would leave now',
      })
    } catch (error) {
      $.ui.log(`/holdfast is not there: ${error}`, { to: 'debug' })
    }
    return next(e)
  }).catch(($, e, next) => next(e))

  on('command.run', { command: 'holdfast' }, async $ => ({ text: await report($, totals) }))
}

/** The text of /holdfast. */
async function report($: EngineInterface, { compactions, saved, last }: Totals): Promise<string> {
  const lines = [compactions === 0 ? 'No compaction by Holdfast in this session yet.' : last]
  if (compactions > 1) lines.push(`${compactions} compactions saved ${format(saved)} tokens.`)
  try {
    const { context } = await $.session.usage()
    if (context.tokens !== undefined) {
      lines.push(`Context now: ${format(context.tokens)} of ${format(context.window)} tokens.`)
    }
    const { tokensBefore, tokensAfter, kept } = await compact($, { messages: await $.session.messages() })
    const sizes = `${format(tokensAfter)} of ${format(tokensBefore)} tokens of messages`
    lines.push(`/compact would leave ${sizes}: an extract and the newest ${kept.messages} messages.`)
  } catch (error) {
    lines.push(`/compact now: ${error instanceof Error ? error.message : error}`)
  }
  return lines.join('\n')
}

/**
 * Compact, and meanwhile import the transcript into Holdfast's store if the model has recall to read it back with.
 *
 * The extract says which of the two it is: "recall reads back the rest", or the transcript file has it.
 */
async function recordAndCompact($: EngineInterface, e: SessionCompactInput, path: string | undefined): Promise<Compacted> {
  // A subagent's transcript is another file, which nobody names here.
  const canRecord = path !== undefined && e.agentId === undefined && (await hasRecall($))
  if (!canRecord) return compact($, e)
  const [isRecorded, compacted] = await Promise.all([record($, path), compact($, e, true)])
  return isRecorded ? compacted : compact($, e)
}

async function hasRecall($: EngineInterface): Promise<boolean> {
  try {
    return (await $.tool.list()).some(({ name }) => /holdfast.*__recall$/.test(name))
  } catch {
    return false
  }
}

async function record($: EngineInterface, path: string): Promise<boolean> {
  try {
    return (await $.process.run(['holdfast', 'import', path, '--json'], { timeoutMs: TIMEOUT_MS })).exitCode === 0
  } catch {
    return false
  }
}

async function canRunHoldfast($: EngineInterface): Promise<boolean> {
  try {
    return (await $.process.run(['holdfast', '--version'], { timeoutMs: TIMEOUT_MS })).exitCode === 0
  } catch {
    return false
  }
}

type Compactable = Pick<SessionCompactInput, 'messages' | 'instructions'> & { trigger?: string }

async function compact($: EngineInterface, e: Compactable, isRecorded = false): Promise<Compacted> {
  const input = JSON.stringify({
    messages: e.messages.map(strip),
    window: await readWindow($),
    trigger: e.trigger,
    instructions: e.instructions,
    isRecorded,
  })
  const ran = await $.process.run(['holdfast', 'compact', '--stdin'], { stdin: input, timeoutMs: TIMEOUT_MS })
  if (ran.exitCode !== 0) throw new Error(explain(ran.exitCode, ran.stderr))
  if (ran.isStdoutTruncated) throw new Error('its answer is longer than Claude Code reads')
  const answer = parse(ran.stdout) as Partial<Compacted> | undefined
  if (!Array.isArray(answer?.messages) || typeof answer.tokensAfter !== 'number' || answer.kept === undefined) {
    throw new Error('its answer is of another version; update the plugin and Holdfast')
  }
  if (answer.why) throw new Error(answer.why)
  return answer as Compacted
}

/** What Holdfast reads of a message. The engine's structured results repeat the texts, and are the larger half. */
function strip(message: SessionMessage): SessionMessage {
  return {
    role: message.role,
    text: message.text,
    toolUses: message.toolUses.map(({ tool_use_id, tool, input }) => ({ tool_use_id, tool, input })),
    ...(message.toolResults !== undefined && {
      toolResults: message.toolResults.map(({ tool_use_id, text, isError }) => ({ tool_use_id, text, isError })),
    }),
    ...(message.handle !== undefined && { handle: message.handle }),
  } as SessionMessage
}

/**
 * The extract, and after it the engine's own objects for the messages that are kept (but see detachResults).
 *
 * The engine takes a message for its own, with thinking and pictures, only if nothing in it differs; so what came back
 * from the other process names the messages, and is not used for more.
 */
function restoreOwnMessages(own: readonly SessionMessage[], compacted: Compacted): SessionMessage[] {
  const [extract, ...kept] = compacted.messages
  if (typeof extract?.text !== 'string' || extract.text === '' || extract.handle !== undefined) {
    throw new Error('its answer has no extract')
  }
  const tail = kept.length === 0 ? [] : own.slice(-kept.length)
  const isTail = tail.length === kept.length && kept.every((message, index) => message.handle === tail[index]?.handle)
  if (!isTail || tail.some(message => message.handle === undefined)) {
    throw new Error('its answer is not of the newest messages')
  }
  return [{ role: 'user', text: extract.text, toolUses: [] }, ...tail.map(detachResults)]
}

/**
 * A message of tool results as one that the engine builds anew from its texts; any other as it is.
 *
 * The engine saves a kept message of results as the child of the call that it had before (seen in 2.1.332). A session
 * that is resumed would go from there into the old branch, as if nothing had been compacted. A message with pictures is
 * kept all the same: what the model sees goes before what a resumed session costs.
 */
function detachResults(message: SessionMessage): SessionMessage {
  const results = message.toolResults ?? []
  if (results.length === 0 || results.some(mayHoldMedia)) return message
  return {
    role: 'user',
    text: message.text,
    toolUses: [],
    toolResults: results.map(({ tool_use_id, text, isError }) => ({ tool_use_id, text, isError })),
  } as SessionMessage
}

/** Whether a result may have pictures: by its structured form, or where it has neither that nor a text. */
function mayHoldMedia({ text, result }: { text: string; result?: unknown }): boolean {
  return result === undefined ? text === '' : holdsMediaBlock(result)
}

function holdsMediaBlock(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  const { type } = value as { type?: unknown }
  if (type === 'image' || type === 'document' || type === 'audio' || type === 'pdf') return true
  return Object.values(value).some(holdsMediaBlock)
}

/** The window of the session's model in tokens, or nothing where the engine does not say. */
async function readWindow($: EngineInterface): Promise<number | undefined> {
  try {
    return (await $.session.usage()).context.window
  } catch {
    return undefined
  }
}

/** Sizes for Claude Code's own line: what the last response was answered over, less what the compaction took away. */
async function measure($: EngineInterface, compacted: Compacted): Promise<{ tokensBefore: number; tokensAfter: number }> {
  const { tokensBefore, tokensAfter } = compacted
  try {
    const tokens = (await $.session.usage()).context.tokens
    const after = tokens === undefined ? 0 : tokens - (tokensBefore - tokensAfter)
    if (tokens !== undefined && after > 0) return { tokensBefore: tokens, tokensAfter: after }
  } catch {
    // Holdfast's own estimates then, of the messages alone.
  }
  return { tokensBefore, tokensAfter }
}

function describe({ tokensBefore, tokensAfter, kept }: Compacted): string {
  const sizes = `${format(tokensBefore)} → ${format(tokensAfter)} tokens of messages`
  const open = kept.openItems > 0 ? `, ${kept.openItems} open items named` : ''
  return `Holdfast compacted: ${sizes}; ${kept.messages} messages unchanged, ${kept.replaced} in the extract${open}.`
}

function format(tokens: number): string {
  return tokens.toLocaleString('en')
}

/** The reason in what a failed run wrote on standard error: our JSON, or the last line of anything else. */
function explain(exitCode: number, stderr: string): string {
  const error = (parse(stderr) as { error?: { path?: string; why?: string; advice?: string } } | undefined)?.error
  if (error?.why !== undefined) return `${error.path}: ${error.why}; ${error.advice}`
  if (stderr.includes('--stdin')) return 'this Holdfast is too old for the plugin; update it'
  return `holdfast ended with ${exitCode}: ${stderr.trim().split('\n').at(-1) ?? ''}`
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
