import type { EngineInterface, PromptSubmitInput, Register, SessionCompactInput, SessionMessage } from 'claude-code'
import {
  type Compacted,
  describeCompaction,
  describeError,
  describeKept,
  explainExit,
  formatShort,
  formatTokens,
  NOT_INSTALLED,
  readAnswer,
} from './answer'
import {
  type CacheState,
  createCacheState,
  describeColdCache,
  estimateContext,
  findColdGap,
  isCompactionWorthIt,
  noteAnswer,
  noteResume,
} from './cold-cache'
import { restoreOwnMessages, stripMessage, takeCurrentMessages } from './messages'

/**
 * The hooks of the plugin: compaction by Holdfast, recording, the status line, and a word before a cold cache.
 *
 * Whatever goes wrong, Claude Code goes on as if this plugin were not there, and one line says why. All calls to the
 * engine are in this file, because Claude Code 2.1.287 lets `$` not be handed to another one.
 */

/** Where `holdfast serve` and `holdfast enable` listen, unless HOLDFAST_URL says otherwise. */
const DEFAULT_SERVER_URL = 'http://127.0.0.1:8642'
/** How long the server may take. It needs a tenth of a second; after this the process is asked. */
const SERVER_TIMEOUT_MS = 3_000
/** How long a server that did not answer is left alone. */
const LOOK_AGAIN_MS = 10 * 60_000
/** How long a process may take. It needs about a second for the largest transcripts. */
const PROCESS_TIMEOUT_MS = 20_000
/** How long after the end of a turn its transcript is imported; what ends meanwhile is imported with it. */
const RECORD_AFTER_MS = 30_000
/** From this share of the window on, the status line says what a compaction would leave. */
const LEAST_ESTIMATED_SHARE = 0.5
/** The estimate is made again when the context has grown by this share of the window: five times in a full window. */
const ESTIMATE_STEP_SHARE = 0.1
const COMPACT_FIRST = 'Compact first'
const SEND = 'Send as it is'

/** What is known of one session. */
type Session = {
  /** Failures that were said already. */
  saidLines: Set<string>
  isInteractive: boolean
  /** Whether Holdfast answered last time; unknown before the first time. */
  isHoldfastThere?: boolean
  /** When to look for a server again, in milliseconds. */
  lookForServerAt: number
  /** Whether the person wants recording: the option `record`. */
  isRecording: boolean
  /** The transcript file of the main conversation. */
  transcriptPath?: string
  /** Transcript files that have grown since they were imported. */
  grownPaths: Set<string>
  isRecordTimerSet: boolean
  /** Whether the newest import succeeded. */
  isRecorded: boolean
  compactions: number
  savedTokens: number
  /** What the last compaction did. */
  lastCompaction: string
  /** What it kept. */
  lastKept: string
  isCompactionUnsaid: boolean
  contextTokens?: number
  window?: number
  /** What a compaction would leave, and at which size of the context that was estimated. */
  estimate?: { leaves: number; at: number }
  cache: CacheState
}

export const register: Register = (on, options) => {
  const session: Session = {
    saidLines: new Set(),
    isInteractive: false,
    lookForServerAt: 0,
    isRecording: options.record !== false,
    grownPaths: new Set(),
    isRecordTimerSet: false,
    isRecorded: false,
    compactions: 0,
    savedTokens: 0,
    lastCompaction: '',
    lastKept: '',
    isCompactionUnsaid: false,
    cache: createCacheState(options.coldCacheTokens),
  }

  on('session.compact', async ($, e, next) => {
    if (e.trigger === 'precompute') {
      // A summary in advance costs a call to the model, and ours would take its place anyway.
      session.isHoldfastThere ??= await canRunHoldfast($)
      return session.isHoldfastThere ? { skip: 'Holdfast compacts when it is due, without a model' } : next(e)
    }
    try {
      const compacted = await recordAndCompact($, session, e)
      if (compacted.why) throw new Error(compacted.why)
      const messages = restoreOwnMessages(e.messages, compacted)
      const sizes = await measureContext($, compacted)
      session.isHoldfastThere = true
      session.compactions += 1
      session.savedTokens += compacted.tokensBefore - compacted.tokensAfter
      session.lastCompaction = describeCompaction(compacted)
      session.lastKept = describeKept(compacted)
      session.contextTokens = undefined
      session.estimate = undefined
      session.isCompactionUnsaid = true
      showStatus($, session)
      return { messages, ...sizes }
    } catch (error) {
      session.isHoldfastThere = false
      const why = describeError(error)
      sayFailure($, session, why, `Holdfast did not compact (${why}); Claude Code writes its own summary instead.`)
      return next(e)
    }
  }).catch(($, e, next) => next(e)) // also where the engine ends this hook, for example because it took too long

  on('prompt.submit', async ($, e, next) => {
    if (await maySendPrompt($, session, e)) return next(e)
    return { drop: 'Holdfast compacts first; your prompt comes back to the box' }
  }).catch(($, e, next) => next(e))

  on('turn.complete', async ($, e, next) => {
    noteAnswer(session.cache, e, await $.clock.now())
    return next(e)
  }).catch(($, e, next) => next(e))

  on('session.measure', async ($, e, next) => {
    session.contextTokens = e.context.tokens
    session.window = e.context.window
    if (session.isInteractive) {
      showStatus($, session)
      void updateEstimate($, session)
    }
    return next(e)
  }).catch(($, e, next) => next(e))

  on('session.start', async ($, e, next) => {
    session.isInteractive = e.isInteractive
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

  on('command.run', { command: 'holdfast' }, async $ => ({ text: await writeReport($, session) }))

  on('classic.SessionStart', async ($, e, next) => {
    session.transcriptPath = e.transcript_path
    if (e.source !== 'compact') noteResume(session.cache, e, await $.clock.now())
    // A new session has no transcript yet.
    if (e.source !== 'startup') recordSoon($, session, e.transcript_path)
    return next(e)
  }).catch(($, e, next) => next(e))

  on('classic.PreCompact', async ($, e, next) => {
    recordSoon($, session, e.transcript_path)
    return next(e)
  }).catch(($, e, next) => next(e))

  on('classic.PostCompact', async ($, e, next) => {
    // Only now, because a terminal is drawn anew when a compaction takes effect.
    if (session.isCompactionUnsaid) $.ui.log(session.lastCompaction)
    session.isCompactionUnsaid = false
    recordSoon($, session, e.transcript_path)
    return next(e)
  }).catch(($, e, next) => next(e))

  on('classic.Stop', async ($, e, next) => {
    recordSoon($, session, e.transcript_path)
    return next(e)
  }).catch(($, e, next) => next(e))

  on('classic.SubagentStop', async ($, e, next) => {
    recordSoon($, session, e.agent_transcript_path)
    return next(e)
  }).catch(($, e, next) => next(e))

  on('session.end', async ($, e, next) => {
    await recordAtEnd($, session)
    return next(e)
  }).catch(($, e, next) => next(e))
}

/** Say what Claude Code does without Holdfast, and why; each reason once. */
function sayFailure($: EngineInterface, session: Session, why: string, line: string): void {
  const said = why === NOT_INSTALLED ? `Claude Code goes on without Holdfast: ${why}.` : line
  if (!session.saidLines.has(said)) $.ui.log(said)
  session.saidLines.add(said)
}

// -- asking Holdfast ---------------------------------------------------------------------------------------------------

type CompactionRequest = Pick<SessionCompactInput, 'messages' | 'instructions'> & {
  trigger?: string
  /** The model whose prices are wanted. They take a tenth of a second, so a compaction does not ask for them. */
  model?: string
}

/**
 * Return what Holdfast makes of a transcript, also where it changes nothing; throws an Error if it gives no answer.
 *
 * A local server is asked if one runs, else a process is started. Both take the same JSON; the server saves the start.
 */
async function askForCompaction(
  $: EngineInterface,
  session: Session,
  request: CompactionRequest,
  isRecorded = false,
): Promise<Compacted> {
  const body = JSON.stringify({
    messages: request.messages.map(stripMessage),
    window: await readWindow($),
    model: request.model,
    trigger: request.trigger,
    instructions: request.instructions,
    isRecorded,
  })
  return (await askServer($, session, body)) ?? (await askProcess($, body))
}

/** Return the server's answer, or nothing if it has none: then the process decides, and says what is wrong. */
async function askServer($: EngineInterface, session: Session, body: string): Promise<Compacted | undefined> {
  const now = await $.clock.now()
  if (now < session.lookForServerAt || (await isBehindHttpProxy($))) return undefined
  const url = (await $.env.get('HOLDFAST_URL')) ?? DEFAULT_SERVER_URL
  if (url === '') return undefined
  const token = await $.env.get('HOLDFAST_TOKEN')
  const headers: Record<string, string> = { 'content-type': 'application/json' }
  if (token) headers['x-holdfast-token'] = token
  const timer = new AbortController()
  try {
    const response = await Promise.race([
      $.http.fetch(`${url.replace(/\/+$/, '')}/v1/compact`, { method: 'POST', headers, body }),
      $.clock.sleep(SERVER_TIMEOUT_MS, { signal: timer.signal }),
    ])
    if (!response) throw new Error(`no answer in ${SERVER_TIMEOUT_MS / 1_000} s`)
    if (response.status !== 200) throw new Error(`status ${response.status}`)
    return readAnswer(response.text)
  } catch (error) {
    session.lookForServerAt = now + LOOK_AGAIN_MS
    $.ui.log(`no server at ${url} (${describeError(error)}); a process is started instead`, { to: 'debug' })
    return undefined
  } finally {
    timer.abort()
  }
}

/**
 * Whether Claude Code may send a request to this machine through an HTTP proxy.
 *
 * It does so even for 127.0.0.1 (seen in 2.1.332), and a transcript must not leave the machine.
 */
async function isBehindHttpProxy($: EngineInterface): Promise<boolean> {
  const proxies = [
    await $.env.get('HTTP_PROXY'),
    await $.env.get('http_proxy'),
    await $.env.get('HTTPS_PROXY'),
    await $.env.get('https_proxy'),
    await $.env.get('ALL_PROXY'),
    await $.env.get('all_proxy'),
  ]
  return proxies.some(Boolean)
}

async function askProcess($: EngineInterface, body: string): Promise<Compacted> {
  const ran = await $.process.run(['holdfast', 'compact', '--stdin'], { stdin: body, timeoutMs: PROCESS_TIMEOUT_MS })
  if (ran.exitCode !== 0) throw new Error(explainExit(ran.exitCode, ran.stderr))
  if (ran.isStdoutTruncated) throw new Error('its answer is longer than Claude Code reads')
  return readAnswer(ran.stdout)
}

async function canRunHoldfast($: EngineInterface): Promise<boolean> {
  try {
    return (await $.process.run(['holdfast', '--version'], { timeoutMs: PROCESS_TIMEOUT_MS })).exitCode === 0
  } catch {
    return false
  }
}

/** The window of the session's model in tokens, or nothing where the engine does not say. */
async function readWindow($: EngineInterface): Promise<number | undefined> {
  try {
    return (await $.session.usage()).context.window
  } catch {
    return undefined
  }
}

async function readModel($: EngineInterface): Promise<string | undefined> {
  try {
    return await $.session.model()
  } catch {
    return undefined
  }
}

// -- compaction --------------------------------------------------------------------------------------------------------

/**
 * Compact, and meanwhile import the transcript into Holdfast's store if the model has recall to read it back with.
 *
 * The extract says which of the two it is: "recall reads back the rest", or the transcript file has it. Only the first
 * import of a session is waited for; after that the newest rows follow in the background, long before a recall.
 */
async function recordAndCompact($: EngineInterface, session: Session, e: SessionCompactInput): Promise<Compacted> {
  // A subagent's model does not know under which name its own transcript is stored, so nothing is promised to it.
  const canRecall = session.isRecording && e.agentId === undefined && (await hasRecall($))
  if (!canRecall) return askForCompaction($, session, e)
  if (session.isRecorded) {
    void recordNow($, session)
    return askForCompaction($, session, e, true)
  }
  const [isRecorded, compacted] = await Promise.all([recordNow($, session), askForCompaction($, session, e, true)])
  return isRecorded ? compacted : askForCompaction($, session, e)
}

async function hasRecall($: EngineInterface): Promise<boolean> {
  try {
    return (await $.tool.list()).some(({ name }) => /holdfast.*__recall$/.test(name))
  } catch {
    return false
  }
}

/** Sizes for Claude Code's own line: what the last response was answered over, less what the compaction took away. */
async function measureContext(
  $: EngineInterface,
  compacted: Compacted,
): Promise<{ tokensBefore: number; tokensAfter: number }> {
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

// -- recording ---------------------------------------------------------------------------------------------------------

/**
 * Import a transcript into Holdfast's store soon, in the background: `holdfast ls`, `show`, `stats` and `recall` then
 * know the session. An import reads the whole file and adds what is new, so it is made at most once in half a minute.
 */
function recordSoon($: EngineInterface, session: Session, path: string | undefined): void {
  if (!session.isRecording || !path) return
  session.grownPaths.add(path)
  if (session.isRecordTimerSet) return
  session.isRecordTimerSet = true
  $.clock.after(RECORD_AFTER_MS, () => {
    void recordGrownPaths($, session)
  })
}

async function recordGrownPaths($: EngineInterface, session: Session): Promise<void> {
  session.isRecordTimerSet = false
  await importTranscripts($, session)
}

/** Import the main conversation now; returns whether all of it is in the store. */
async function recordNow($: EngineInterface, session: Session): Promise<boolean> {
  if (!session.transcriptPath) return false
  session.grownPaths.add(session.transcriptPath)
  await importTranscripts($, session)
  return session.isRecorded
}

/**
 * Import what has grown in a process that outlives this one: Claude Code gives the end of a session 1.5 seconds.
 *
 * Where there is no `sh`, the rest is imported when the session is resumed.
 */
async function recordAtEnd($: EngineInterface, session: Session): Promise<void> {
  const paths = takeGrownPaths(session)
  if (paths.length === 0) return
  await $.process.run(['sh', '-c', 'holdfast import "$@" >/dev/null 2>&1 &', 'sh', ...paths])
}

function takeGrownPaths(session: Session): string[] {
  const paths = [...session.grownPaths]
  session.grownPaths.clear()
  return paths
}

/** Import what has grown. What failed once fails again, so it is said once and not tried again in this session. */
async function importTranscripts($: EngineInterface, session: Session): Promise<void> {
  const paths = takeGrownPaths(session)
  if (!session.isRecording || paths.length === 0) return
  try {
    const ran = await $.process.run(['holdfast', 'import', ...paths, '--json'], { timeoutMs: PROCESS_TIMEOUT_MS })
    if (ran.exitCode !== 0) throw new Error(explainExit(ran.exitCode, ran.stderr))
    session.isRecorded = true
  } catch (error) {
    session.isRecorded = false
    session.isRecording = false
    const why = describeError(error)
    sayFailure($, session, why, `Holdfast does not record this session (${why}); it stays in Claude Code's transcript file.`)
  }
}

// -- the status line and /holdfast -------------------------------------------------------------------------------------

/** Draw the status line: context now, what a compaction would leave, saved so far; only what is known. */
function showStatus($: EngineInterface, session: Session): void {
  const parts: string[] = []
  if (session.contextTokens !== undefined && session.window !== undefined) {
    parts.push(`${formatShort(session.contextTokens)} of ${formatShort(session.window)} tokens`)
  }
  if (session.estimate !== undefined) parts.push(`/compact leaves ${formatShort(session.estimate.leaves)}`)
  if (session.savedTokens > 0) parts.push(`${formatShort(session.savedTokens)} saved`)
  if (parts.length > 0) $.ui.status(parts.join(' · '))
}

/**
 * Estimate what a compaction would leave, if the context is large and has grown since the last estimate.
 *
 * It costs a compaction whose result is thrown away: at most five in a window, after a turn, in the background.
 */
async function updateEstimate($: EngineInterface, session: Session): Promise<void> {
  const { contextTokens, window, estimate } = session
  if (contextTokens === undefined || window === undefined || contextTokens < LEAST_ESTIMATED_SHARE * window) return
  if (estimate !== undefined && contextTokens < estimate.at + ESTIMATE_STEP_SHARE * window) return
  try {
    if (estimate !== undefined) estimate.at = contextTokens // no second estimate meanwhile
    const messages = takeCurrentMessages(await $.session.messages())
    const { tokensBefore, tokensAfter } = await askForCompaction($, session, { messages })
    const leaves = Math.max(tokensAfter, contextTokens - (tokensBefore - tokensAfter))
    session.estimate = { leaves, at: contextTokens }
    showStatus($, session)
  } catch (error) {
    $.ui.log(`no estimate: ${describeError(error)}`, { to: 'debug' })
  }
}

/** The text of /holdfast. */
async function writeReport($: EngineInterface, session: Session): Promise<string> {
  const { compactions, savedTokens, lastCompaction, lastKept } = session
  const lines = compactions === 0 ? ['No compaction by Holdfast in this session yet.'] : [lastCompaction, lastKept]
  if (compactions > 1) lines.push(`${compactions} compactions saved ${formatTokens(savedTokens)} tokens.`)
  try {
    const { context } = await $.session.usage({ breakdown: 'summary' })
    if (context.tokens !== undefined) {
      lines.push(`Context now: ${formatTokens(context.tokens)} of ${formatTokens(context.window)} tokens.`)
    }
    for (const { name, tokens } of context.breakdown?.categories ?? []) {
      if (tokens > 0) lines.push(`  ${name}: ${formatTokens(tokens)}`)
    }
    const messages = takeCurrentMessages(await $.session.messages())
    const answer = await askForCompaction($, session, { messages })
    if (answer.why) throw new Error(answer.why)
    const sizes = `${formatTokens(answer.tokensAfter)} of ${formatTokens(answer.tokensBefore)} tokens of messages`
    lines.push(`/compact would leave ${sizes}: an extract and the newest ${answer.kept.messages} messages.`)
  } catch (error) {
    lines.push(`/compact now: ${describeError(error)}`)
  }
  return lines.join('\n')
}

// -- the cold cache ----------------------------------------------------------------------------------------------------

/**
 * Return whether the prompt may be sent. If not, the person chose to compact first; the prompt comes back to the box.
 *
 * Whatever fails, the prompt is sent: a question that nobody can answer must not hold it.
 */
async function maySendPrompt($: EngineInterface, session: Session, e: PromptSubmitInput): Promise<boolean> {
  const { cache } = session
  const idleMs = findColdGap(cache, e, await $.clock.now())
  if (idleMs === undefined) return true
  const reportedTokens = cache.resumedTokens ?? (await $.session.usage()).context.tokens ?? 0
  if (reportedTokens < cache.leastTokens) return true
  cache.isTold = true
  const compacted = await compactForComparison($, session)
  const tokens = estimateContext(cache, reportedTokens, compacted)
  if (tokens < cache.leastTokens) return true
  const told = describeColdCache(cache, idleMs, tokens, compacted)
  if (!isCompactionWorthIt(e, tokens, compacted)) {
    $.ui.log(told)
    return true
  }
  try {
    const choice = await $.ui.ask(`${told} Compact first?`, { header: 'Cold cache', options: [COMPACT_FIRST, SEND] })
    if (choice !== COMPACT_FIRST) return true
  } catch {
    return true // dismissed, or nobody there to ask
  }
  // Later, because the engine compacts nothing under a prompt that is being submitted.
  $.clock.after(1, () => {
    void compactAndRestorePrompt($, e.text)
  })
  return false
}

async function compactForComparison($: EngineInterface, session: Session): Promise<Compacted | undefined> {
  try {
    const messages = takeCurrentMessages(await $.session.messages())
    return await askForCompaction($, session, { messages, model: await readModel($) })
  } catch (error) {
    $.ui.log(`nothing to compare with: ${describeError(error)}`, { to: 'debug' })
    return undefined
  }
}

/**
 * Compact as /compact does, then put the prompt back into the box for the person to send.
 *
 * By the command, because a plugin that calls `$.session.compact` is itself not asked for the compaction.
 */
async function compactAndRestorePrompt($: EngineInterface, text: string): Promise<void> {
  try {
    await $.command.run({ command: 'compact', args: '' })
  } catch (error) {
    $.ui.log(`The conversation was not compacted (${describeError(error)}).`)
  }
  // In place of what is there: Claude Code 2.1.332 puts a dropped prompt back by itself.
  const { isFilled } = await $.prompt.fill({ text, mode: 'replace' })
  // Where the box cannot be filled (a dialog is open), the prompt is sent rather than lost.
  if (!isFilled) await $.prompt.submit({ text, asUser: true })
}
