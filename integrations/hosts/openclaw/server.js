/** Ask a running `holdfast serve`. */

import { request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'

const DEFAULT_URL = 'http://127.0.0.1:8642'
/** How long an answer may take. A compaction of a million tokens needs about two seconds; after this nobody waits. */
const TIMEOUT_MS = 15_000
/** A text this long means that something else than Holdfast answers. */
const MAX_ANSWER_CHARS = 256 * 1024 * 1024
const CLIENT = 'openclaw'

/** The routes of one server. Every method throws an `Error` whose message can be shown to a user. */
export class HoldfastServer {
  #url
  #token
  #timeoutMs

  constructor({ url, token, timeoutMs = TIMEOUT_MS } = {}) {
    this.#url = url || process.env.HOLDFAST_URL || DEFAULT_URL
    this.#token = token || process.env.HOLDFAST_TOKEN || ''
    this.#timeoutMs = timeoutMs
  }

  /** Ask which messages of a conversation to send, and how. */
  async plan(session, fields, signal) {
    const answer = await this.#post('/v1/plan', { client: CLIENT, session, ...fields }, signal)
    const isPlan = Array.isArray(answer.messages) && answer.messages.length > 0 && Number.isFinite(answer.tokensAfter)
    if (!isPlan) throw new Error('its answer is of another version; update the plugin and Holdfast')
    return answer
  }

  /** Answer the model's call of the tool `recall`. */
  async recall(session, args, signal) {
    const answer = await this.#post('/v1/recall', { client: CLIENT, session, ...args }, signal)
    if (typeof answer.text !== 'string') throw new Error('its answer is of another version; update the plugin and Holdfast')
    return answer
  }

  async #post(path, body, signal) {
    const { status, text } = await this.#send(path, JSON.stringify(body), signal)
    const answer = parseObject(text)
    if (status === 404 || status === 405) throw new Error('this Holdfast is too old for the plugin; update it')
    if (status === 401) throw new Error('it wants a token; set HOLDFAST_TOKEN, or token in the configuration of the plugin')
    if (status !== 200) throw new Error(explainRefusal(status, answer))
    if (answer === undefined) throw new Error('its answer is not whole')
    return answer
  }

  /**
   * Post to the server itself, never through a proxy of the environment: the conversation stays on this machine.
   *
   * OpenClaw sends what goes through `fetch` to the proxy that HTTP_PROXY names.
   */
  #send(path, body, signal) {
    const url = new URL(path, this.#url)
    const send = url.protocol === 'https:' ? requestHttps : requestHttp
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }
    if (this.#token !== '') headers['x-holdfast-token'] = this.#token
    const timeout = AbortSignal.timeout(this.#timeoutMs)
    const stop = signal === undefined ? timeout : AbortSignal.any([timeout, signal])
    return new Promise((resolve, reject) => {
      const fail = error => {
        if (timeout.aborted) reject(new Error(`it did not answer within ${this.#timeoutMs / 1000} s`))
        else if (error.code === 'ECONNREFUSED') reject(new Error(`nothing listens at ${url.origin}; start holdfast serve`))
        else reject(error)
      }
      const request = send(url, { method: 'POST', headers, signal: stop }, response => {
        let text = ''
        response.setEncoding('utf8')
        response.on('data', chunk => {
          text += chunk
          if (text.length > MAX_ANSWER_CHARS) response.destroy(new Error('its answer is too long'))
        })
        response.on('end', () => resolve({ status: response.statusCode, text }))
        response.on('error', fail)
      })
      request.on('error', fail)
      request.end(body)
    })
  }
}

function parseObject(text) {
  try {
    const value = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value : undefined
  } catch {
    return undefined
  }
}

function explainRefusal(status, answer) {
  const error = answer?.error
  if (typeof error?.why !== 'string') return `it answered with status ${status}`
  return `${error.path}: ${error.why}; ${error.advice}`
}
