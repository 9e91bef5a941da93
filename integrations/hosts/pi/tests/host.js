/** What stands around the extension in these tests: the parts of pi that it uses, and a server that answers as told. */

import { createServer } from 'node:http'

import { registerHoldfast } from '../src/extension.js'

export const user = text => ({ role: 'user', content: [{ type: 'text', text }], timestamp: 1 })

export const answer = (content, more = {}) => ({
  role: 'assistant',
  content: typeof content === 'string' ? [{ type: 'text', text: content }] : content,
  stopReason: 'stop',
  usage: { input: 900, output: 5, cacheRead: 100, cacheWrite: 0, totalTokens: 1_005 },
  ...more,
})

export const call = (id, name = 'read', input = { path: 'x.py' }) => ({ type: 'toolCall', id, name, arguments: input })

export const result = (id, text) => ({
  role: 'toolResult',
  toolCallId: id,
  toolName: 'read',
  content: [{ type: 'text', text }],
  isError: false,
  timestamp: 1,
})

/** Start a server whose answers `respond(path, body)` gives: `{status?, json?, text?, delayMs?}`. */
export async function serve(respond) {
  const requests = []
  const server = createServer((request, response) => {
    let text = ''
    request.on('data', chunk => (text += chunk))
    request.on('end', () => {
      const body = JSON.parse(text)
      requests.push({ path: request.url, body, headers: request.headers })
      const { status = 200, json, text: raw, delayMs = 0 } = respond(request.url, body)
      setTimeout(() => response.writeHead(status).end(raw ?? JSON.stringify(json)), delayMs)
    })
  })
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
  const stop = () => new Promise(resolve => server.close(resolve).closeAllConnections())
  return { url: `http://127.0.0.1:${server.address().port}`, requests, stop }
}

/** Load the extension as pi does, with the server at `url`, and return what it registered and what it said. */
export function load(url, { token } = {}) {
  const handlers = new Map()
  const world = { tools: {}, commands: {}, said: [], status: '' }
  const pi = {
    on: (event, handler) => handlers.set(event, handler),
    registerTool: tool => (world.tools[tool.name] = tool),
    registerCommand: (name, options) => (world.commands[name] = options),
    getActiveTools: () => ['read'],
    getAllTools: () => [{ name: 'read', description: 'reads', parameters: {} }, { name: 'off', description: 'x'.repeat(9_999) }],
  }
  process.env.HOLDFAST_URL = url
  process.env.HOLDFAST_TOKEN = token ?? ''
  registerHoldfast(pi, message => message.errorMessage === 'too long')
  world.entries = []
  world.context = {
    hasUI: true,
    ui: { notify: text => world.said.push(text), setStatus: (_key, text) => (world.status = text) },
    model: { id: 'claude-opus-4-6', contextWindow: 50_000, baseUrl: 'https://api.anthropic.com' },
    sessionManager: { getSessionId: () => 's-1', buildSessionProjection: () => ({ entries: world.entries }) },
    getSystemPrompt: () => 'p'.repeat(350),
    getContextUsage: () => ({ tokens: 1_000, contextWindow: 50_000, percent: 2 }),
    signal: undefined,
  }
  world.emit = (event, fields) => handlers.get(event)({ type: event, ...fields }, world.context)
  /** What pi would send: the messages that the extension returns, or its own. */
  world.send = async messages => (await world.emit('context', { messages: structuredClone(messages) }))?.messages ?? messages
  world.compact = (fields = {}) =>
    world.emit('session_before_compact', { preparation: { tokensBefore: 4_000 }, reason: 'manual', ...fields })
  return world
}

/** An answer of `/v1/plan` that keeps the messages with `handles`, behind an extract if there is one. */
export const plan = (rows, more = {}) => ({
  json: {
    messages: rows.map(row => (typeof row === 'string' ? { handle: row } : row)),
    tokensBefore: 900,
    tokensAfter: 300,
    sessionKey: 'pi-plugin-s-1',
    isCompacted: false,
    notices: [],
    ...more,
  },
})
