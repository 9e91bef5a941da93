/** What the tests share: messages in opencode's form, a server that answers as told, and opencode's client. */

import { createServer } from 'node:http'

export const SESSION = 'ses_test'
const MODEL = { providerID: 'fake', modelID: 'fake-1' }

/** @param {string} id @param {...object} parts */
export function makePrompt(id, ...parts) {
  const info = { id, sessionID: SESSION, role: 'user', agent: 'build', model: MODEL, time: { created: 1 } }
  return { info, parts: parts.map((part, index) => ({ id: `${id}_${index}`, sessionID: SESSION, messageID: id, ...part })) }
}

/** @param {string} id @param {...object} parts */
export function makeStep(id, ...parts) {
  const tokens = { input: 900, output: 40, reasoning: 0, cache: { read: 5_000, write: 100 } }
  const info = { id, sessionID: SESSION, role: 'assistant', ...MODEL, tokens, time: { created: 1 } }
  return { info, parts: parts.map((part, index) => ({ id: `${id}_${index}`, sessionID: SESSION, messageID: id, ...part })) }
}

/** @param {string} text */
export function makeText(text, fields = {}) {
  return { type: 'text', text, ...fields }
}

/** @param {string} callID @param {string} output */
export function makeCall(callID, output, state = {}) {
  const completed = { status: 'completed', input: { command: `cat ${callID}` }, output, title: '', metadata: {}, time: { start: 1, end: 2 } }
  return { type: 'tool', tool: 'bash', callID, state: { ...completed, ...state } }
}

/**
 * Start a server that answers by `answer(path, body)`: status and body, or undefined for no answer at all.
 *
 * @param {(path: string, body: any) => [number, unknown] | undefined} answer
 */
export async function startServer(answer) {
  /** @type {{ path: string, body: any, headers: object }[]} */
  const requests = []
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const body = JSON.parse(text)
    requests.push({ path: request.url, body, headers: request.headers })
    const answered = answer(request.url, body)
    if (answered === undefined) return
    response.statusCode = answered[0]
    response.end(typeof answered[1] === 'string' ? answered[1] : JSON.stringify(answered[1]))
  })
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
  const stop = () => {
    server.closeAllConnections()
    server.close()
  }
  return { url: `http://127.0.0.1:${server.address().port}`, requests, stop }
}

/** opencode's client, which writes down what it is asked to show. */
export function makeClient(limit = { context: 200_000, output: 32_000 }) {
  const toasts = []
  const logs = []
  const options = {}
  const data = { providers: [{ id: 'fake', options, models: { 'fake-1': { limit } } }] }
  return {
    toasts,
    logs,
    options,
    tui: { showToast: async ({ body }) => toasts.push(body.message) },
    app: { log: async ({ body }) => logs.push(body.message) },
    config: { providers: async () => ({ data }) },
  }
}

/** The answer of `/v1/plan` that changes nothing. */
export function keepAll(body) {
  const rows = body.messages.map(({ handle }) => ({ handle }))
  return { messages: rows, tokensBefore: 10, tokensAfter: 10, isCompacted: false, notices: [] }
}
