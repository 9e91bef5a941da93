/** Ask the local routes of `holdfast serve`. */

const DEFAULT_URL = 'http://127.0.0.1:8642'
/** How long an answer may take. The largest sessions need a few seconds when they are seen for the first time. */
const TIMEOUT_MS = 15_000

/** Holdfast gave no answer that can be used; the message says why and what to do, for the user. */
export class NoAnswer extends Error {
  /** Whether it took too long. */
  isLate = false
}

/**
 * Return the answer of the route `path` to `body`, which has the field `field`. Throws `NoAnswer` for anything else.
 *
 * @param {string} path
 * @param {object} body
 * @param {string} [field]
 * @param {number} [timeoutMs]
 * @returns {Promise<Record<string, any>>}
 */
export async function askHoldfast(path, body, field = 'messages', timeoutMs = TIMEOUT_MS) {
  const { HOLDFAST_TOKEN } = process.env
  const url = getServerUrl()
  const headers = { 'content-type': 'application/json', ...(HOLDFAST_TOKEN && { 'x-holdfast-token': HOLDFAST_TOKEN }) }
  const request = { method: 'POST', headers, body: JSON.stringify(body), signal: AbortSignal.timeout(timeoutMs) }
  const { status, text } = await send(url, path, request, timeoutMs)
  const answer = parseJson(text)
  if (status === 401) throw new NoAnswer(`${url} wants a token; set HOLDFAST_TOKEN as for the server`)
  if (status === 404 || status === 405) throw new NoAnswer(`${url} has no ${path}; update Holdfast`)
  if (status !== 200) throw new NoAnswer(`${url} answers ${status}${describeError(answer)}; see \`holdfast doctor\``)
  if (answer?.[field] === undefined) throw new NoAnswer(`${url} answers in another form; update Holdfast and the plugin`)
  return answer
}

/** The address of `holdfast serve`. */
export function getServerUrl() {
  return (process.env.HOLDFAST_URL || DEFAULT_URL).replace(/\/+$/, '')
}

/** @param {string} url @param {string} path @param {RequestInit} request @param {number} timeoutMs */
async function send(url, path, request, timeoutMs) {
  try {
    const response = await fetch(url + path, request)
    return { status: response.status, text: await response.text() }
  } catch (error) {
    if (error?.name !== 'TimeoutError') throw new NoAnswer(`nothing answers at ${url}; start \`holdfast serve\`, or set HOLDFAST_URL`)
    const late = new NoAnswer(`no answer from ${url} in ${timeoutMs / 1000} s; see \`holdfast doctor\``)
    late.isLate = true
    throw late
  }
}

/** @param {string} text */
function parseJson(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** @param {Record<string, any> | undefined} answer */
function describeError(answer) {
  const { path, why } = answer?.error ?? {}
  return why ? ` (${path}: ${String(why).slice(0, 200)})` : ''
}
