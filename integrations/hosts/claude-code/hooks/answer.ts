/**
 * The answer of `holdfast compact --stdin` and of its server, and the words for what it says.
 */

/** Characters of an error that a notice quotes. */
const MAX_WHY_CHARS = 300
/** The reason that concerns everything the plugin does; it is said once for all of it. */
export const NOT_INSTALLED = 'there is no program holdfast on the PATH; install Holdfast'

export type Compacted = {
  messages: readonly { text?: unknown; handle?: unknown }[]
  tokensBefore: number
  tokensAfter: number
  kept: {
    messages: number
    replaced: number
    toolCalls: number
    userMessages: number
    extractTokens: number
    openItems: number
  }
  /** Dollars for a million tokens written to the prompt cache; absent where the price of the model is not known. */
  cacheWritePrices?: { fiveMinutes: number; oneHour: number }
  why?: string
}

/** Read an answer; throws an Error with the reason if it is none. */
export function readAnswer(text: string): Compacted {
  const answer = parseJson(text) as Partial<Compacted> | undefined
  if (!Array.isArray(answer?.messages) || typeof answer.tokensAfter !== 'number' || answer.kept === undefined) {
    throw new Error('its answer is of another version; update the plugin and Holdfast')
  }
  return answer as Compacted
}

/** The reason in what a failed run wrote on standard error: our JSON, or the last line of anything else. */
export function explainExit(exitCode: number, stderr: string): string {
  const error = (parseJson(stderr) as { error?: { path?: string; why?: string; advice?: string } } | undefined)?.error
  if (error?.why !== undefined) return `${error.path}: ${error.why}; ${error.advice}`
  if (/No such (option|command)/.test(stderr)) return 'this Holdfast is too old for the plugin; update it'
  return `holdfast ended with ${exitCode}: ${stderr.trim().split('\n').at(-1) ?? ''}`
}

export function describeCompaction({ tokensBefore, tokensAfter, kept }: Compacted): string {
  const sizes = `${formatTokens(tokensBefore)} → ${formatTokens(tokensAfter)} tokens of messages`
  const open = kept.openItems > 0 ? `, ${kept.openItems} open items named` : ''
  return `Holdfast compacted: ${sizes}; ${kept.messages} messages unchanged, ${kept.replaced} in the extract${open}.`
}

/** What is left of the messages, for /holdfast. */
export function describeKept({ tokensAfter, kept }: Compacted): string {
  const extract = `The extract has ${formatTokens(kept.extractTokens)} of the ${formatTokens(tokensAfter)} tokens`
  const unchanged = `${kept.userMessages} messages of yours and ${kept.toolCalls} tool calls are unchanged`
  return `${extract}; ${unchanged}. What it does not quote is in the transcript file, and in the store if it is recorded.`
}

/** The reason in an error: of Holdfast's answer, or of Claude Code that could not start it. */
export function describeError(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  return message.includes('ENOENT') ? NOT_INSTALLED : message.slice(0, MAX_WHY_CHARS)
}

export function formatTokens(tokens: number): string {
  return tokens.toLocaleString('en')
}

/** Thousands of tokens, as `18k`. */
export function formatShort(tokens: number): string {
  return tokens < 1_000 ? String(tokens) : `${Math.round(tokens / 1_000).toLocaleString('en')}k`
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
