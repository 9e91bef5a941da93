import assert from 'node:assert/strict'
import { afterEach, beforeEach, test } from 'node:test'

import plugin from '../src/plugin.js'
import { keepAll, makeCall, makeClient, makePrompt, makeStep, makeText, SESSION, startServer } from './helpers.js'

let server
let client
let hooks

/** Start the plugin against a server that answers by `answer`. */
async function start(answer, { options, limit } = {}) {
  server = await startServer(answer)
  process.env.HOLDFAST_URL = server.url
  client = makeClient(limit)
  hooks = await plugin.server({ client }, options)
}

/** What the next request shows of `messages`. */
async function show(messages) {
  const shown = [...messages]
  await hooks['experimental.chat.messages.transform']({}, { messages: shown })
  return shown
}

beforeEach(() => {
  delete process.env.HOLDFAST_TOKEN
})

afterEach(() => {
  server?.stop()
})

function makeSession() {
  return [
    makePrompt('m1', makeText('Why is it slow?')),
    makeStep('m2', makeCall('c1', 'a long log')),
    makeStep('m3', makeText('It is the disk.')),
    makePrompt('m4', makeText('Then change it.')),
  ]
}

const EXTRACT = [{ role: 'user', text: 'what was said' }, { handle: 'm3' }, { handle: 'm4' }]

function compact(path, body) {
  return [200, { ...keepAll(body), messages: EXTRACT, tokensBefore: 90_000, tokensAfter: 4_000, isCompacted: true }]
}

test('opencode loads it as a plugin that is a folder, which needs an id', () => {
  assert.equal(plugin.id, 'holdfast')
  assert.equal(typeof plugin.server, 'function')
})

test('the answer is what opencode sends: the array is changed in place, and a compaction is told', async () => {
  await start(compact)
  const shown = await show(makeSession())
  assert.deepEqual(shown.map(({ parts }) => parts[0].text), ['what was said', 'It is the disk.', 'Then change it.'])
  assert.deepEqual(client.toasts, ['Holdfast compacted: requests show 4,000 of 90,000 tokens of messages.'])
  assert.deepEqual(client.logs, client.toasts)
})

test('Holdfast is told the session, the model, its window and the size of system prompt and tools', async () => {
  process.env.HOLDFAST_TOKEN = 'secret'
  await start((path, body) => [200, keepAll(body)], { limit: { context: 200_000, output: 64_000 } })
  await show(makeSession())
  const [{ path, body, headers }] = server.requests
  assert.equal(path, '/v1/plan')
  assert.equal(headers['x-holdfast-token'], 'secret')
  assert.equal(body.client, 'opencode')
  assert.equal(body.session, SESSION)
  assert.equal(body.model, 'fake-1')
  assert.equal(body.window, 188_000)
  // The first request had 6,000 tokens (see makeStep), a few of them the prompt's.
  assert.ok(body.setupTokens > 5_900 && body.setupTokens < 6_000, String(body.setupTokens))
  assert.equal(body.force, false)
  assert.equal(body.messages.length, 5)
})

test('the size of system prompt and tools is the same in every request, as another would break the cache', async () => {
  await start((path, body) => [200, keepAll(body)])
  const session = makeSession()
  await show(session)
  const later = makeStep('m5', makeText('Done.'))
  later.info.tokens = { input: 90_000, output: 10, cache: { read: 0, write: 0 } }
  await show([...session, later, makePrompt('m6', makeText('And now?'))])
  const [first, second] = server.requests.map(({ body }) => body.setupTokens)
  assert.equal(first, second)
})

test("it is measured after opencode's own compaction too, where older answers stand behind the summary", async () => {
  await start((path, body) => [200, keepAll(body)])
  const summary = makeStep('m6', makeText('A summary.'))
  summary.info.summary = true
  const kept = makeStep('m4', makeText('Old and large.'))
  kept.info.tokens = { input: 150_000, output: 10, cache: { read: 0, write: 0 } }
  const compaction = makePrompt('m5', { type: 'compaction', auto: true })
  const next = makePrompt('m7', makeText('Go on.'))
  await show([compaction, summary, kept, next])
  await show([compaction, summary, kept, next, makeStep('m8', makeText('Yes.')), makePrompt('m9', makeText('More.'))])
  const [first, second] = server.requests.map(({ body }) => body.setupTokens)
  assert.equal(first, 8_000)
  assert.ok(second > 5_800 && second < 6_000, String(second))
})

const REFUSALS = [
  [{ name: 'ContextOverflowError', data: { message: 'no' } }, true],
  [{ name: 'APIError', data: { message: 'input length and `max_tokens` exceed context limit: 46200 + 4000 > 48000' } }, true],
  [{ name: 'APIError', data: { message: 'Overloaded' } }, false],
  [{ name: 'APIError' }, false],
]

for (const [error, isForced] of REFUSALS) {
  test(`after ${JSON.stringify(error)} Holdfast compacts at once: ${isForced}`, async () => {
    await start((path, body) => [200, keepAll(body)])
    const refused = makeStep('m5', { type: 'step-start' })
    refused.info.error = error
    await show([...makeSession(), refused, makePrompt('m6', makeText('Try again.'))])
    assert.equal(server.requests[0].body.force, isForced)
  })
}

test('what Holdfast has to say is said once', async () => {
  await start((path, body) => [200, { ...keepAll(body), notices: ['The store is full.'] }])
  await show(makeSession())
  await show(makeSession())
  assert.deepEqual(client.toasts, ['Holdfast: The store is full.'])
})

const FAILURES = {
  'an old version': { answer: () => [404, '{"error": "no such address"}'], says: /update Holdfast/ },
  'no token': { answer: () => [401, ''], says: /HOLDFAST_TOKEN/ },
  'a refusal': { answer: () => [400, { error: { path: 'window', why: 'too small' } }], says: /400 \(window: too small\)/ },
  'a crash': { answer: () => [500, 'Internal Server Error'], says: /500; see `holdfast doctor`/ },
  'half an answer': { answer: () => [200, '{"messages": [{"hand'], says: /another form/ },
  'another answer': { answer: () => [200, { rows: [] }], says: /another form/ },
  'an unknown handle': { answer: () => [200, { messages: [{ handle: 'm9' }] }], says: /not there: m9/ },
  'an answer of a wrong shape': { answer: () => [200, { messages: [{ handle: 7 }] }], says: /the plugin failed/ },
  'messages that are no list': { answer: () => [200, { messages: 7 }], says: /the plugin failed/ },
}

for (const [what, { answer, says }] of Object.entries(FAILURES)) {
  test(`${what}: opencode goes on with its own messages, and one line says so, once`, async () => {
    await start(answer)
    const session = makeSession()
    const shown = await show(session)
    await show(session)
    assert.deepEqual(shown, session)
    assert.ok(shown.every((message, index) => message === session[index]))
    assert.equal(client.toasts.length, 1)
    assert.match(client.toasts[0], says)
    assert.match(client.toasts[0], /opencode goes on without it\.$/)
    assert.ok(!client.toasts[0].includes('\n'))
  })
}

test('no server: opencode goes on with its own messages, and the line says what to start', async () => {
  await start(() => undefined)
  server.stop()
  const session = makeSession()
  assert.deepEqual(await show(session), session)
  assert.deepEqual(client.toasts, [
    `Holdfast does not help here (nothing answers at ${server.url}; start \`holdfast serve\`, or set HOLDFAST_URL); opencode goes on without it.`,
  ])
})

test('a server that does not answer in time is not waited for again in the next minute', async () => {
  await start(() => undefined, { options: { timeoutMs: 50 } })
  const session = makeSession()
  assert.deepEqual(await show(session), session)
  assert.deepEqual(await show(session), session)
  assert.equal(server.requests.length, 1)
  assert.match(client.toasts[0], /no answer from .* in 0\.05 s/)
})

test('a server that goes away leaves what it decided, with the new messages behind', async () => {
  await start(compact)
  const session = makeSession()
  await show(session)
  server.stop()
  const shown = await show([...session, makeStep('m5', makeText('Done.')), makePrompt('m6', makeText('And now?'))])
  const texts = shown.map(({ parts }) => parts[0].text)
  assert.deepEqual(texts, ['what was said', 'It is the disk.', 'Then change it.', 'Done.', 'And now?'])
})

test('what it decided does not hold for a conversation that was taken back', async () => {
  await start(compact)
  await show(makeSession())
  server.stop()
  const [, ...rest] = makeSession()
  const other = [makePrompt('m0', makeText('Something else.')), ...rest]
  assert.deepEqual(await show(other), other)
})

test('a session without messages is left alone', async () => {
  await start(() => [500, ''])
  assert.deepEqual(await show([]), [])
  assert.deepEqual(await show([makePrompt('m1', makeText('a note', { ignored: true }))]).then(shown => shown.length), 1)
  assert.equal(server.requests.length, 0)
})

test('requests that go to the proxy of the same address are left to it', async () => {
  await start(compact)
  client.options.baseURL = `${server.url}/v1`
  const session = makeSession()
  assert.deepEqual(await show(session), session)
  assert.equal(server.requests.length, 0)
})

test("opencode's own compaction summarizes an extract, and is not a request of the session", async () => {
  await start((path, body) => (path === '/v1/compact' ? [200, { messages: [EXTRACT[0], body.messages.at(-1)] }] : [200, keepAll(body)]))
  await hooks['experimental.session.compacting']({ sessionID: SESSION }, { context: [] })
  const [extract, kept, ...others] = await show(makeSession())
  assert.match(extract.parts[0].text, /^what was said\n\n.*word for word\.$/)
  assert.equal(kept.info.id, 'm4')
  assert.equal(others.length, 0)
  await show(makeSession())
  assert.deepEqual(server.requests.map(({ path }) => path), ['/v1/compact', '/v1/plan'])
  assert.deepEqual(client.toasts, [])
})

test("opencode's own compaction goes on without an extract if there is none to gain, or no server", async () => {
  await start((path, body) => [200, { messages: body.messages, why: 'nothing would be gained' }])
  const session = makeSession()
  await hooks['experimental.session.compacting']({ sessionID: SESSION }, { context: [] })
  assert.deepEqual(await show(session), session)
  assert.deepEqual(client.toasts, [])
  server.stop()
  await hooks['experimental.session.compacting']({ sessionID: SESSION }, { context: [] })
  assert.deepEqual(await show(session), session)
  assert.match(client.toasts[0], /opencode writes its summary without it\.$/)
})

test('the tool reads the session back in which it was called, and says why when it cannot', async () => {
  await start(() => [200, { text: 'line 12', isError: false }])
  const read = await hooks.tool.recall.execute({ id: 123456, lines: '12', search: null }, { sessionID: SESSION })
  assert.equal(read, 'line 12')
  const { path, body } = server.requests[0]
  assert.equal(path, '/v1/recall')
  assert.deepEqual(body, { client: 'opencode', session: SESSION, id: '123456', lines: '12', chars: '', search: '', page: 1 })
  server.stop()
  assert.match(await hooks.tool.recall.execute({}, { sessionID: SESSION }), /Nothing can be read back now: .*holdfast serve/)
})

test('an interface that shows nothing, and a log that fails, hold nothing up', async () => {
  await start(compact)
  client.tui.showToast = async () => {
    throw new Error('no interface')
  }
  client.app.log = () => {
    throw new Error('no log')
  }
  client.config.providers = async () => {
    throw new Error('no catalogue')
  }
  assert.equal((await show(makeSession())).length, 3)
  assert.equal(server.requests[0].body.window, undefined)
})
