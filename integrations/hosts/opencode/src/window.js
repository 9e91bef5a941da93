/** How many tokens a request may have before opencode compacts by itself. */

/** opencode allows an answer at most this many tokens, and keeps as many free. */
const MAX_OUTPUT_TOKENS = Number(process.env.OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX) || 32_000
/** The same for models with an input limit of their own (`compaction.reserved` in opencode's configuration). */
const RESERVED_TOKENS = 20_000
/** What Holdfast keeps free of a window: a third of the rest, which is a quarter of the whole, and at most this. */
const HOLDFAST_RESERVE = 20_000

/**
 * Return the window to tell Holdfast for a model, so that opencode's own compaction never comes due; undefined if
 * opencode does not know the model's limits.
 *
 * opencode's reserve for the answer is often larger than Holdfast's. So the window is what opencode itself would use,
 * and beside it what Holdfast keeps free.
 *
 * @param {{ context: number, output?: number, input?: number } | undefined} limit
 * @param {number} [reserved]
 */
export function computeWindow(limit, reserved) {
  if (!limit?.context) return undefined
  const outputTokens = Math.min(limit.output || MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
  const usableTokens = limit.input
    ? limit.input - (reserved ?? Math.min(RESERVED_TOKENS, outputTokens))
    : limit.context - outputTokens
  if (usableTokens <= 0) return limit.context
  return Math.min(limit.context, usableTokens + Math.min(HOLDFAST_RESERVE, Math.floor(usableTokens / 3)))
}

/**
 * Return a function that looks up what opencode knows of a model: its limits, and the address of its requests. opencode
 * is asked once.
 *
 * @param {Record<string, any>} client opencode's client
 */
export function createModelReader(client) {
  let catalogue
  /**
   * @param {{ providerID: string, modelID: string } | undefined} model
   * @returns {Promise<{ limit?: { context: number, output?: number, input?: number }, address?: string }>}
   */
  return async model => {
    try {
      catalogue ??= client.config.providers()
      const { data } = await catalogue
      const provider = data.providers.find(({ id }) => id === model.providerID)
      return { limit: provider.models[model.modelID].limit, address: provider.options?.baseURL }
    } catch {
      catalogue = undefined
      return {}
    }
  }
}
