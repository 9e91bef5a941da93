import type { PromptSubmitInput, TurnCompleteInput } from 'claude-code'
import { type Compacted, formatShort } from './answer'

/**
 * When the prompt cache of a long conversation has expired, and what the next prompt then costs.
 *
 * The person is told once for each gap, and only above a size where it matters.
 */

const FIVE_MINUTES_MS = 5 * 60_000
const ONE_HOUR_MS = 60 * 60_000
/** Told from this size on, unless the option `coldCacheTokens` says otherwise: at $5 a million tokens, 60 cents. */
export const LEAST_COLD_TOKENS = 100_000
/** Tokens of Claude Code's system prompt and tools (2.1.332), which no estimate of messages has. */
const SETUP_TOKENS = 16_000
/** A compaction is offered only if it leaves less than this share of the context. */
const MAX_SHARE_LEFT = 0.7
/** Where a prompt comes from that a person has just sent. */
const PERSONS_ORIGINS = ['composer', 'bridge', 'sdk']

export type CacheState = {
  /** Tokens from which the person is told; 0 never. */
  leastTokens: number
  /** When the newest answer came, in milliseconds; unknown before the first one. */
  lastAnswerAt?: number
  /** How long the provider keeps what was cached: an hour until a response names five minutes. */
  lifetimeMs: number
  /** Whether the engine judged the cache of a resumed session to be expired. */
  isExpired: boolean
  /** Tokens of a resumed session, which has no response of its own yet. */
  resumedTokens?: number
  /** What the engine says it costs to cache those again, in dollars. */
  resumedPrice?: number
  /** Whether the person was told of this gap. */
  isTold: boolean
}

export function createCacheState(leastTokens: unknown): CacheState {
  return {
    leastTokens: typeof leastTokens === 'number' ? leastTokens : LEAST_COLD_TOKENS,
    lifetimeMs: ONE_HOUR_MS,
    isExpired: false,
    isTold: false,
  }
}

/** Note that the main conversation got an answer: its cache is warm from now on. */
export function noteAnswer(cache: CacheState, e: TurnCompleteInput, now: number): void {
  if (e.agentId !== undefined || e.usage === undefined) return
  cache.lastAnswerAt = now
  cache.isExpired = false
  cache.isTold = false
  cache.resumedTokens = undefined
  cache.resumedPrice = undefined
  if ((e.usage.ephemeral_1h_input_tokens ?? 0) > 0) cache.lifetimeMs = ONE_HOUR_MS
  else if ((e.usage.ephemeral_5m_input_tokens ?? 0) > 0) cache.lifetimeMs = FIVE_MINUTES_MS
}

/** What Claude Code says of a session that is resumed. */
export type ResumedSession = {
  seconds_since_last_response?: number
  context_tokens?: number
  prompt_cache_likely_expired?: boolean
  estimated_cache_write_usd?: number
}

/** Note how old a resumed session is; the engine judges by the lifetime that it asks for. */
export function noteResume(cache: CacheState, e: ResumedSession, now: number): void {
  const idleMs = (e.seconds_since_last_response ?? 0) * 1_000
  cache.lastAnswerAt = e.seconds_since_last_response === undefined ? undefined : now - idleMs
  cache.isExpired = e.prompt_cache_likely_expired === true
  cache.isTold = false
  cache.resumedTokens = e.context_tokens
  cache.resumedPrice = e.estimated_cache_write_usd
  if (cache.isExpired && idleMs < ONE_HOUR_MS) cache.lifetimeMs = FIVE_MINUTES_MS
}

/** How long nothing was asked, in milliseconds, if a prompt would go to a cold cache; nothing if it is warm or told. */
export function findColdGap(cache: CacheState, e: PromptSubmitInput, now: number): number | undefined {
  const isPersons = e.turnId === undefined && PERSONS_ORIGINS.includes(e.origin.kind) && !e.text.startsWith('/')
  if (!isPersons || cache.isTold || cache.leastTokens <= 0 || cache.lastAnswerAt === undefined) return undefined
  const idleMs = now - cache.lastAnswerAt
  return cache.isExpired || idleMs > cache.lifetimeMs ? idleMs : undefined
}

/**
 * Tokens of the context that a prompt sends.
 *
 * What the engine reports of a resumed session is its last response's, also if it was compacted after that.
 */
export function estimateContext(cache: CacheState, reportedTokens: number, compacted: Compacted | undefined): number {
  if (cache.resumedTokens === undefined || compacted === undefined) return reportedTokens
  return Math.min(reportedTokens, compacted.tokensBefore + SETUP_TOKENS)
}

/** Whether to ask for a compaction before the prompt: someone is there, it can be put back, and it is worth it. */
export function isCompactionWorthIt(e: PromptSubmitInput, tokens: number, compacted: Compacted | undefined): boolean {
  // A prompt with pictures cannot be put back into the box.
  if (compacted === undefined || e.attachments !== undefined || e.origin.kind !== 'composer') return false
  return countTokensLeft(tokens, compacted) < MAX_SHARE_LEFT * tokens
}

/** What is said before the prompt is sent. */
export function describeColdCache(
  cache: CacheState,
  idleMs: number,
  tokens: number,
  compacted: Compacted | undefined,
): string {
  const price = findPrice(cache, compacted)
  const told =
    `The prompt cache has expired (${formatDuration(idleMs)} without a request). ` +
    `This prompt sends ${formatShort(tokens)} tokens anew${formatPrice(tokens, price)}.`
  if (compacted === undefined || compacted.why) return told
  const left = countTokensLeft(tokens, compacted)
  return `${told} A compaction would leave ${formatShort(left)}${formatPrice(left, price)}.`
}

/** Dollars for a million tokens: the engine's own figure of a resumed session, else Holdfast's table. */
function findPrice(cache: CacheState, compacted: Compacted | undefined): number | undefined {
  if (cache.resumedTokens && cache.resumedPrice) return (cache.resumedPrice / cache.resumedTokens) * 1_000_000
  const prices = compacted?.cacheWritePrices
  return cache.lifetimeMs === ONE_HOUR_MS ? prices?.oneHour : prices?.fiveMinutes
}

function countTokensLeft(tokens: number, { tokensBefore, tokensAfter }: Compacted): number {
  return Math.max(tokensAfter, tokens - (tokensBefore - tokensAfter))
}

function formatPrice(tokens: number, dollarsPerMillion: number | undefined): string {
  if (dollarsPerMillion === undefined) return ''
  return ` (about $${((tokens * dollarsPerMillion) / 1_000_000).toFixed(2)} at list price)`
}

function formatDuration(milliseconds: number): string {
  const minutes = Math.round(milliseconds / 60_000)
  if (minutes < 60) return `${minutes} min`
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`
  return `${Math.floor(minutes / (24 * 60))} days`
}
