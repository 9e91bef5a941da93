/** Asking `holdfast serve`, and saying in one line what went wrong. */

const DEFAULT_URL = 'http://127.0.0.1:8642'
/** How long an answer may take. The largest sessions need a few seconds; after this pi goes on without. */
const TIMEOUT_MS = 10_000
/** How long a server that did not answer in time is left alone, so that pi does not wait for it at every request. */
const PAUSE_MS = 60_000
/** Characters of an error that a notice quotes. */
const MAX_WHY_CHARS = 300

export class HoldfastServer {
  #pausedUntil = 0

  constructor(environment = process.env, timeoutMs = TIMEOUT_MS) {
    this.url = (environment.HOLDFAST_URL || DEFAULT_URL).replace(/\/+$/, '')
    this.timeoutMs = timeoutMs
    this.token = environment.HOLDFAST_TOKEN
  }

  /** Return the JSON that the server answers at `path`. Throws an error whose message can be shown to the user. */
  async post(path, body, signal) {
    if (Date.now() < this.#pausedUntil) throw new Error(`it did not answer within ${this.timeoutMs / 1_000} s`)
    const timeout = AbortSignal.timeout(this.timeoutMs)
    let response
    let text
    try {
      response = await fetch(this.url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...(this.token && { 'x-holdfast-token': this.token }) },
        body: JSON.stringify(body),
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      })
      text = await response.text()
    } catch {
      if (timeout.aborted) {
        this.#pausedUntil = Date.now() + PAUSE_MS
        throw new Error(`it did not answer within ${this.timeoutMs / 1_000} s`)
      }
      throw new Error(`nothing answers at ${this.url}; start \`holdfast serve\` or set HOLDFAST_URL`)
    }
    const answer = parse(text)
    if (response.status !== 200) throw new Error(explain(response.status, answer))
    if (typeof answer !== 'object' || answer === null) throw new Error('its answer is not whole')
    return answer
  }
}

function explain(status, answer) {
  const error = answer?.error
  if (status === 400 && error?.why) return `${error.path}: ${error.why}; ${error.advice}`.slice(0, MAX_WHY_CHARS)
  if (status === 401 || status === 403) return 'it wants a token; set HOLDFAST_TOKEN to the one it was started with'
  return `it answers HTTP ${status}; update Holdfast and this extension to the same version`
}

function parse(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
