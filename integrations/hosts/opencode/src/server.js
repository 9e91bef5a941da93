/** Ask the local routes of `holdfast serve`. */

const DEFAULT_URL = 'http://127.0.0.1:8642'
/** How long an answer may take. The largest sessions need a few seconds when they are seen for the first time. */
const TIMEOUT_MS = 15_000

/** Holdfast gave no answer; the message says why and what to do, for the user. */
export class NoAnswer extends Error {
  /** Whether it took too long. */
  isLate = false
}

/**
 * Return the answer of the route `path` to `body`. Throws `NoAnswer` for everything else.
 *
 * @param {string} path
 * @param {object} body
 * @param {{ env?: Record<string, string | undefined>, timeoutMs?: number }} [settings]
 * @returns {Promise<Record<string, any>>}
 */
export async function askHoldfast(path, body, { env = process.env, timeoutMs = TIMEOUT_MS } = {}) {
  const url = (env.HOLDFAST_URL || DEFAULT_URL).replace(/\/+$/, '')
  const headers = { 'content-type': 'application/json', ...(env.HOLDFAST_TOKEN && { 'x-holdfast-token': env.HOLDFAST_TOKEN }) }
  let status, text
  try {
    const response = await fetch(url + path, {
      method: 'POST',
      headers,
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(timeoutMs),
    })
    status = response.status
    text = await response.text()
  } catch (error) {
    if (error?.name !== 'TimeoutError') throw new NoAnswer(`nothing answers at ${url}; start \`holdfast serve\`, or set HOLDFAST_URL`)
    const late = new NoAnswer(`no answer from ${url} in ${timeoutMs / 1000} s; see \`holdfast doctor\``)
    late.isLate = true
    throw late
  }
  const answer = parseObject(text)
  if (status === 404) throw new NoAnswer(`${url} has no ${path}; update Holdfast`)
  if (status === 401 || status === 403) throw new NoAnswer(`${url} refuses this client; set HOLDFAST_TOKEN as the server has it`)
  if (status !== 200) throw new NoAnswer(`${url} answers ${status}${describeError(answer)}; see \`holdfast doctor\``)
  if (!Array.isArray(answer?.messages)) throw new NoAnswer(`${url} answers in another form; update Holdfast and the plugin`)
  return answer
}

/** @param {string} text */
function parseObject(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** @param {Record<string, any> | undefined} answer */
function describeError(answer) {
  const { path, why } = answer?.error ?? {}
  return why ? ` (${[path, why].filter(Boolean).join(': ').slice(0, 200)})` : ''
}
