import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { afterEach, describe, test } from 'node:test'

import { describeMessages } from '../conversation.js'
import { HoldfastEngine } from '../engine.js'
import { makeRecallTool } from '../recall.js'
import { HoldfastServer } from '../server.js'

const say = (role, text, timestamp) => ({ role, content: [{ type: 'text', text }], timestamp })
const MESSAGES = [say('user', 'Never touch main.py.', 1), say('assistant', 'Yes.', 2), say('user', 'Go on.', 3)]
const PARAMS = {
  sessionId: 's1',
  sessionKey: 'agent:main:s1',
  messages: MESSAGES,
  tokenBudget: 10_000,
  model: 'claude-sonnet-4-5',
  runtimeSettings: { limits: { promptTokenBudget: 10_000, maxOutputTokens: 4_000 } },
}
const COMPACT = { sessionId: 's1', sessionKey: 'agent:main:s1', tokenBudget: 14_000, force: true }
const KEEP_ALL = { messages: [{ handle: '0' }, { handle: '1' }, { handle: '2' }], tokensBefore: 900, tokensAfter: 900, notices: [] }
const EXTRACT = {
  messages: [{ role: 'user', text: 'the extract' }, { handle: '2' }],
  tokensBefore: 900,
  tokensAfter: 300,
  isCompacted: true,
  notices: [],
}

const openServers = []
afterEach(() => openServers.splice(0).forEach(server => server.close()))

/** A place where requests arrive and are answered as `answer` says, which no Holdfast would. */
async function listen(answer) {
  const requests = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', chunk => (body += chunk))
    request.on('end', () => {
      requests.push({ path: request.url, token: request.headers['x-holdfast-token'], body: JSON.parse(body) })
      answer(response, requests.length)
    })
  })
  openServers.push(server)
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${server.address().port}`, requests }
}

const reply = (body, status = 200) => response => response.writeHead(status).end(typeof body === 'string' ? body : JSON.stringify(body))

/** An engine, and what OpenClaw's side of it saw. */
function makeEngine(url, { transcript = () => MESSAGES, timeoutMs = 400, token, memory } = {}) {
  const seen = { said: [], delegated: 0 }
  const host = {
    readTranscript: async () => transcript(),
    delegateCompaction: async () => {
      seen.delegated++
      return { ok: true, compacted: true, reason: 'by OpenClaw' }
    },
    describeMemory: () => memory,
  }
  const engine = new HoldfastEngine(new HoldfastServer({ url, timeoutMs, token }), host, text => seen.said.push(text))
  return { engine, seen }
}

describe('assemble', () => {
  test('hands over the messages, the model and the window, and sends what the plan says', async () => {
    const { url, requests } = await listen(reply(EXTRACT))
    const { engine } = makeEngine(url, { token: 'secret' })
    const { messages, estimatedTokens } = await engine.assemble(PARAMS)

    assert.deepEqual(messages, [{ role: 'user', content: 'the extract', timestamp: 1 }, MESSAGES[2]])
    assert.equal(estimatedTokens, 300)
    const [{ path, token, body }] = requests
    assert.deepEqual([path, token], ['/v1/plan', 'secret'])
    assert.deepEqual([body.client, body.session, body.model, body.window], ['openclaw', 's1', 'claude-sonnet-4-5', 14_000])
    assert.deepEqual(body.messages, describeMessages(MESSAGES).rows)
    assert.equal(body.force, undefined)
  })

  test('adds the beginning that OpenClaw left out', async () => {
    const { url, requests } = await listen(reply(EXTRACT))
    const { engine } = makeEngine(url)
    await engine.assemble({ ...PARAMS, messages: MESSAGES.slice(1) })
    assert.equal(requests[0].body.messages.length, 3)
  })

  test('asks nobody about an empty session', async () => {
    const { url, requests } = await listen(reply(EXTRACT))
    const { engine } = makeEngine(url)
    assert.deepEqual((await engine.assemble({ ...PARAMS, messages: [] })).messages, [])
    assert.equal(requests.length, 0)
  })

  test('passes on what OpenClaw says about memory, which only its own engine gets without asking', async () => {
    const { url } = await listen(reply(KEEP_ALL))
    const { engine } = makeEngine(url, { memory: 'Look into MEMORY.md.' })
    assert.equal((await engine.assemble(PARAMS)).systemPromptAddition, 'Look into MEMORY.md.')
  })

  test('shows the same within a turn without asking again, while it fits', async () => {
    const { url, requests } = await listen(reply(EXTRACT))
    const { engine } = makeEngine(url)
    const { messages } = await engine.assemble(PARAMS)
    const again = await engine.assemble({ ...PARAMS, messages, tokenBudget: 9_000 })
    assert.equal(again.messages, messages)
    assert.equal(requests.length, 1)
  })

  test('makes the past smaller once when the turn outgrows the window, and keeps it so', async () => {
    const { url, requests } = await listen((response, count) => reply(count === 1 ? KEEP_ALL : EXTRACT)(response))
    const { engine } = makeEngine(url)
    const { messages } = await engine.assemble(PARAMS)
    for (const tokenBudget of [500, 200, 100]) {
      const again = await engine.assemble({ ...PARAMS, messages, tokenBudget })
      assert.equal(again.messages[0].content, 'the extract')
    }
    assert.deepEqual(
      requests.map(({ body }) => body.window),
      [14_000, 7_000],
    )
  })
})

describe('compact', () => {
  test('compacts the whole transcript, and the retry is planned with the part that OpenClaw left out', async () => {
    const { url, requests } = await listen(reply(EXTRACT))
    // OpenClaw hides the running turn from whoever reads the transcript for the retry.
    const transcript = [MESSAGES, []]
    const { engine, seen } = makeEngine(url, { transcript: () => transcript.shift() })
    const result = await engine.compact(COMPACT)
    assert.deepEqual(result, { ok: true, compacted: true, result: { tokensBefore: 900, tokensAfter: 300 } })
    await engine.assemble({ ...PARAMS, messages: MESSAGES.slice(2) })
    assert.deepEqual(
      requests.map(({ body }) => [body.force, body.messages.length]),
      [
        [true, 3],
        [undefined, 3],
      ],
    )
    assert.equal(seen.delegated, 0)
  })

  test('says to the user that there is nothing to compact', async () => {
    const { url } = await listen(reply({ ...KEEP_ALL, notices: ['it is short'] }))
    const { engine, seen } = makeEngine(url)
    const result = await engine.compact({ ...COMPACT, runtimeContext: { trigger: 'manual' } })
    assert.deepEqual(result, { ok: true, compacted: false, reason: 'it is short' })
    assert.equal(seen.delegated, 0)
  })

  test('leaves a refused request to OpenClaw when there is nothing that Holdfast can compact', async () => {
    const { url } = await listen(reply(KEEP_ALL))
    const { engine, seen } = makeEngine(url)
    assert.equal((await engine.compact({ ...COMPACT, runtimeContext: { trigger: 'overflow' } })).reason, 'by OpenClaw')
    assert.equal(seen.delegated, 1)
  })

  test('stops when OpenClaw stops', async () => {
    const { url } = await listen(() => {})
    const { engine, seen } = makeEngine(url, { timeoutMs: 5_000 })
    const stop = new AbortController()
    setTimeout(() => stop.abort(), 50)
    await assert.rejects(engine.compact({ ...COMPACT, abortSignal: stop.signal }))
    assert.equal(seen.delegated, 0)
  })
})

const error = { error: { path: 'messages[0].role', why: "'x' is no role", advice: 'give user' } }
const FAILURES = {
  'no server': [undefined, 'start holdfast serve'],
  'an old server': [reply('{"error": "not found"}', 404), 'too old'],
  'a server that wants a token': [reply('{}', 401), 'token'],
  'a message of a newer format': [reply(error, 400), 'messages[0].role'],
  'an error without words': [reply('<html>', 502), 'status 502'],
  'a slow server': [() => {}, 'within 0.4 s'],
  'half an answer': [reply('{"messages": [{"hand'), 'not whole'],
  'a connection that breaks': [response => response.writeHead(200, { 'content-length': 99 }).end('{', () => response.destroy()), ''],
  'an answer of another version': [reply({ messages: 'all' }), 'another version'],
  'an empty plan': [reply({ messages: [], tokensAfter: 0 }), 'another version'],
  'a handle that nobody gave': [reply({ messages: [{ handle: '9' }], tokensAfter: 1 }), 'message 9'],
}
describe('whatever goes wrong', () => {
  for (const [name, [answer, why]] of Object.entries(FAILURES)) {
    test(`${name}: OpenClaw's own messages, its own compaction, and one line for each`, async () => {
      const { url } = answer === undefined ? { url: 'http://127.0.0.1:9' } : await listen(answer)
      const { engine, seen } = makeEngine(url)
      const startedAt = Date.now()
      const { messages, estimatedTokens } = await engine.assemble(PARAMS)
      assert.ok(Date.now() - startedAt < 5_000)
      assert.equal(messages, MESSAGES)
      assert.ok(estimatedTokens > 0)
      assert.equal((await engine.compact(COMPACT)).reason, 'by OpenClaw')
      assert.equal(seen.said.length, 2)
      assert.ok(seen.said.every(text => text.includes(why) && !text.includes('\n')))
    })
  }

  test('a transcript that cannot be read leaves the messages as they are handed over', async () => {
    const { url } = await listen(reply(KEEP_ALL))
    const { engine, seen } = makeEngine(url)
    const host = {
      readTranscript: async () => {
        throw new Error('locked')
      },
    }
    const broken = new HoldfastEngine(new HoldfastServer({ url }), { ...host, describeMemory: () => undefined }, () => {})
    assert.deepEqual((await broken.assemble(PARAMS)).messages, MESSAGES)
    assert.deepEqual(seen.said, [])
    assert.ok(engine)
  })

  test('a committed turn is committed again without harm', async () => {
    const { engine } = makeEngine('http://127.0.0.1:9')
    assert.deepEqual(await engine.commitTurn({ advancementKey: 'k' }), { status: 'committed' })
    assert.deepEqual(await engine.ingest({}), { ingested: false })
  })
})

describe('recall', () => {
  test('asks about the session of the call', async () => {
    const { url, requests } = await listen(reply({ text: 'line 7', isError: false }))
    const tool = makeRecallTool(new HoldfastServer({ url }), 's1')
    const result = await tool.execute('c1', { search: 'seven' })
    assert.deepEqual(result.content, [{ type: 'text', text: 'line 7' }])
    assert.deepEqual(requests[0], { path: '/v1/recall', token: undefined, body: { client: 'openclaw', session: 's1', search: 'seven' } })
  })

  test('tells the model when it does not work', async () => {
    const tool = makeRecallTool(new HoldfastServer({ url: 'http://127.0.0.1:9' }), 's1')
    const { content } = await tool.execute('c1', {})
    assert.match(content[0].text, /does not work now.*start holdfast serve/)
  })
})
