import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'

import { HoldfastServer } from '../src/server.js'
import { answer, call, load, plan, result, serve, user } from './host.js'

const EXTRACT = { role: 'user', text: 'The extract: never touch main.py.' }
const THINKING = { type: 'thinking', thinking: 'hm', thinkingSignature: 'signed' }
const PICTURE = { type: 'image', data: 'AAAA', mimeType: 'image/png' }

const MESSAGES = [
  user('Never touch main.py.'),
  answer([THINKING, { type: 'text', text: 'I read it.' }, call('c1')]),
  { ...result('c1', 'x = 1\n'.repeat(50)), content: [{ type: 'text', text: 'x = 1' }, PICTURE] },
  answer('Done.'),
  user('Go on.'),
]

let server
afterEach(() => server?.stop())

async function start(respond, options) {
  server = await serve(respond)
  return load(server.url, options)
}

describe('a plan', () => {
  test('an extract stands for older messages, and the others are pi’s own, with thinking and pictures', async () => {
    const world = await start(() => plan([EXTRACT, '1', '2', '3', '4'], { isCompacted: true }))
    const sent = await world.send(MESSAGES)
    assert.deepEqual(sent[0].content, [{ type: 'text', text: EXTRACT.text }])
    assert.equal(sent[0].role, 'user')
    assert.deepEqual(sent.slice(1), MESSAGES.slice(1))
    assert.deepEqual(world.said, ['Holdfast compacted the next request: 900 → 300 tokens of messages.'])
    assert.equal(world.status, 'holdfast: 300 of 900 tokens sent')
  })

  test('the text of a result is replaced, its pictures stay', async () => {
    const world = await start(() =>
      plan(['0', '1', { handle: '2', toolResults: [{ tool_use_id: 'c1', text: 'preview' }] }, '3', '4']),
    )
    const sent = await world.send(MESSAGES)
    assert.deepEqual(sent[2], { ...MESSAGES[2], content: [{ type: 'text', text: 'preview' }, PICTURE] })
    assert.deepEqual(sent[1], MESSAGES[1])
  })

  test('the text of an answer is replaced, its thinking and calls stay where they were', async () => {
    const world = await start(() => plan(['0', { handle: '1', text: 'I…' }, '2', '3', '4']))
    const sent = await world.send(MESSAGES)
    assert.deepEqual(sent[1].content, [THINKING, { type: 'text', text: 'I…' }, call('c1')])
  })

  test('without a change pi sends its own list, so that system messages stay in place', async () => {
    const world = await start(() => plan(['0', '1', '2', '3', '4'], { tokensAfter: 900 }))
    assert.equal(await world.emit('context', { messages: MESSAGES }), undefined)
    assert.equal(world.status, 'holdfast')
  })

  test('Holdfast gets texts, calls, results and sizes, and neither thinking nor pictures', async () => {
    const world = await start(() => plan(['0', '1', '2', '3', '4']), { token: 'secret' })
    await world.send(MESSAGES)
    const { path, body, headers } = server.requests[0]
    assert.equal(path, '/v1/plan')
    assert.equal(headers['x-holdfast-token'], 'secret')
    assert.deepEqual(body.messages[1], {
      handle: '1',
      role: 'assistant',
      text: 'I read it.',
      toolUses: [{ tool_use_id: 'c1', tool: 'read', input: { path: 'x.py' } }],
      usage: { input: 900, output: 5, cacheRead: 100, cacheWrite: 0 },
      hiddenTokens: 1,
    })
    assert.deepEqual(body.messages[2], {
      handle: '2',
      role: 'user',
      toolResults: [{ tool_use_id: 'c1', text: 'x = 1', isError: false }],
      hiddenTokens: 1_600,
    })
    assert.deepEqual([body.client, body.session, body.model, body.window], ['pi', 's-1', 'claude-opus-4-6', 50_000])
    assert.ok(body.setupTokens > 100 && body.setupTokens < 200, 'a tool that is switched off does not count')
  })

  test('after a refusal for its length the window is no larger than that request', async () => {
    const world = await start(() => plan(['0', '1', '2', '3', '4'], { tokensAfter: 8_000 }))
    const usage = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, totalTokens: 0 }
    const fail = errorMessage => world.emit('message_end', { message: answer('', { stopReason: 'error', errorMessage, usage }) })
    world.context.getContextUsage = () => ({ tokens: 20_000, contextWindow: 50_000, percent: 40 })
    await fail('too long') // of a request that was not planned
    await world.send(MESSAGES)
    await fail('overloaded')
    await world.send(MESSAGES)
    await fail('input length and `max_tokens` exceed context limit: 39000 + 8000 > 40000')
    await world.send(MESSAGES)
    world.context.getContextUsage = () => ({ tokens: 6_000, contextWindow: 50_000, percent: 12 })
    await fail('too long')
    await world.send(MESSAGES)
    const { setupTokens } = server.requests[0].body
    assert.deepEqual(server.requests.map(({ body }) => body.window), [50_000, 50_000, 8_000 + setupTokens, 6_000])
  })

  test('what pi does not send to the model is not planned either', async () => {
    const world = await start(() => plan([EXTRACT, '3']))
    const sent = await world.send([
      user('a'),
      answer('broken off', { stopReason: 'aborted' }),
      { role: 'bashExecution', command: 'ls', output: 'x', excludeFromContext: true },
      user('b'),
    ])
    assert.deepEqual(server.requests[0].body.messages.map(one => one.handle), ['0', '3'])
    assert.equal(sent.length, 2)
  })

  test('pi’s own summary is handed over in its words, an extract of ours bare', async () => {
    const ours = 'The conversation before this point was replaced by this extract of it (3 messages); …'
    const world = await start(() => plan(['0', '1', '2']))
    await world.send([
      { role: 'compactionSummary', summary: 'pi’s own' },
      { role: 'compactionSummary', summary: ours },
      { role: 'bashExecution', command: 'ls', output: 'x.py' },
    ])
    const texts = server.requests[0].body.messages.map(one => one.text)
    assert.match(texts[0], /^The conversation history before this point was compacted.*<summary>\npi’s own\n<\/summary>$/s)
    assert.equal(texts[1], ours)
    assert.equal(texts[2], 'Ran `ls`\nx.py')
  })

  test('an extract ends the list where the newest message alone is too large', async () => {
    const world = await start(() => plan([EXTRACT]))
    const sent = await world.send(MESSAGES)
    assert.equal(sent.length, 1)
    assert.deepEqual(world.said, [])
  })

  test('a notice is said once, also where its numbers differ', async () => {
    let count = 0
    const world = await start(() => plan(['0', '1', '2', '3', '4'], { notices: [`${(count += 1)} texts were too long`] }))
    await world.send(MESSAGES)
    await world.send(MESSAGES)
    assert.deepEqual(world.said, ['Holdfast: 1 texts were too long'])
  })

  test('requests that pass through the proxy anyway are left to it', async () => {
    const world = await start(() => plan([EXTRACT, '4']))
    world.context.model.baseUrl = `${server.url}/v1`
    assert.equal(await world.send(MESSAGES), MESSAGES)
    assert.equal(await world.compact(), undefined)
    assert.equal(server.requests.length, 0)
    assert.equal(world.said.length, 1)
  })
})

describe('pi goes on as without Holdfast, and says why once', () => {
  const fails = async (respond, why) => {
    const world = await start(respond)
    assert.equal(await world.send(MESSAGES), MESSAGES)
    assert.equal(await world.send(MESSAGES), MESSAGES)
    assert.equal(world.said.length, 1)
    assert.match(world.said[0], why)
  }
  const wrong = (rows, why) => fails(() => plan(rows), why)

  test('an old server', () => fails(() => ({ status: 404, json: { error: {} } }), /HTTP 404; update Holdfast/))
  test('an error inside the server', () => fails(() => ({ status: 500, text: 'oops' }), /HTTP 500/))
  test('a token that is missing', () => fails(() => ({ status: 401, json: {} }), /set HOLDFAST_TOKEN/))
  test('half an answer', () => fails(() => ({ text: '{"messages": [' }), /not whole/))
  test('no answer at all', () => fails(() => ({ text: 'null' }), /not whole/))
  test('an answer of another version', () => fails(() => ({ json: { messages: [] } }), /another version/))
  test('a request that it does not understand', () =>
    fails(
      () => ({ status: 400, json: { error: { path: 'messages[3].text', why: 'it is a number', advice: 'give a text' } } }),
      /messages\[3\]\.text: it is a number; give a text/,
    ))
  test('an unknown message', () => wrong(['0', '9', '4'], /unknown message \(9\)/))
  test('messages in another order', () => wrong(['1', '2', '0', '4'], /another order/))
  test('a result without its call', () => wrong([EXTRACT, '2', '3', '4'], /parts a tool call from its result/))
  test('a call without its result', () => wrong(['0', '1', '3', '4'], /parts a tool call from its result/))
  test('without the newest message', () => wrong([EXTRACT, '3'], /leaves out the newest/))
  test('a text for another call', () =>
    wrong(['0', '1', { handle: '2', toolResults: [{ tool_use_id: 'zz', text: '' }] }, '3', '4'], /unknown tool call/))
  test('a new message without a text', () => wrong([{ role: 'user' }, '4'], /without text/))

  test('no server at all', async () => {
    const world = load('http://127.0.0.1:9')
    assert.equal(await world.send(MESSAGES), MESSAGES)
    assert.match(world.said[0], /nothing answers at http:\/\/127\.0\.0\.1:9; start `holdfast serve`/)
  })

  test('a request that the user broke off is nobody’s fault', async () => {
    const world = await start(() => ({ ...plan(['4']), delayMs: 200 }))
    const controller = new AbortController()
    world.context.signal = controller.signal
    setTimeout(() => controller.abort(), 20)
    assert.equal(await world.send(MESSAGES), MESSAGES)
    assert.deepEqual(world.said, [])
  })
})

describe('one answer that does not come', () => {
  test('the newest plan holds, and what came since follows as it is', async () => {
    let isDown = false
    const world = await start(() => (isDown ? { status: 503, json: {} } : plan([EXTRACT, '3', '4'])))
    const before = await world.send(MESSAGES)
    isDown = true
    const more = [...MESSAGES, answer('ok'), user('And now?')]
    const sent = await world.send(more)
    assert.deepEqual(sent, [...before, ...more.slice(5)])
    assert.equal(world.said.length, 1)
  })

  test('messages that were changed meanwhile go out as pi has them', async () => {
    let isDown = false
    const world = await start(() => (isDown ? { status: 503, json: {} } : plan([EXTRACT, '3', '4'])))
    await world.send(MESSAGES)
    isDown = true
    const other = [user('Another branch.'), ...MESSAGES.slice(1)]
    assert.equal(await world.send(other), other)
    const shorter = MESSAGES.slice(0, 1)
    assert.equal(await world.send(shorter), shorter)
  })
})

describe('a compaction', () => {
  const entries = MESSAGES.map((message, index) => ({ sourceEntry: { id: `e${index}` }, messages: [message] }))
  const compacted = (handles, more = {}) => ({
    json: {
      messages: [EXTRACT, ...handles.map(handle => ({ role: 'assistant', text: 'not pi’s', handle }))],
      tokensBefore: 900,
      tokensAfter: 300,
      kept: { messages: handles.length, replaced: 5 - handles.length, openItems: 1 },
      ...more,
    },
  })

  test('pi gets the extract as its summary, and the entry from which its messages stay', async () => {
    const world = await start(() => compacted(['e3', 'e4']))
    world.entries = entries
    const { compaction } = await world.compact({ customInstructions: 'mind the rules' })
    assert.equal(compaction.summary, EXTRACT.text)
    assert.equal(compaction.firstKeptEntryId, 'e3')
    assert.equal(compaction.tokensBefore, 4_000)
    assert.equal(server.requests[0].path, '/v1/compact')
    assert.equal(server.requests[0].body.instructions, 'mind the rules')
    assert.equal(server.requests[0].body.isRecorded, false)
    const open = '2 messages unchanged, 3 in the extract, 1 open items named.'
    assert.deepEqual(world.said, [`Holdfast compacted: 900 → 300 tokens of messages; ${open}`])
  })

  test('the extract may name recall once the session is in the store', async () => {
    const world = await start(path => (path === '/v1/plan' ? plan(['0', '1', '2', '3', '4']) : compacted(['e4'])))
    world.entries = entries
    await world.send(MESSAGES)
    await world.compact()
    assert.equal(server.requests[1].body.isRecorded, true)
  })

  for (const [name, reply, why] of [
    ['nothing would be gained', compacted(['e4'], { why: 'it would not get smaller' }), /would not get smaller/],
    ['other messages than the newest', compacted(['e1', 'e4']), /not of the newest/],
    ['a cut between a call and its result', compacted(['e2', 'e3', 'e4']), /not of the newest/],
    ['nothing kept', compacted([]), /not of the newest/],
    ['an answer of another version', compacted(['e4'], { kept: undefined }), /another version/],
    ['no extract', plan(['e3', 'e4'], { kept: {} }), /no extract/],
    ['no server', { status: 502, text: '' }, /HTTP 502/],
  ]) {
    test(`pi writes its own summary: ${name}`, async () => {
      const world = await start(() => reply)
      world.entries = entries
      assert.equal(await world.compact(), undefined)
      assert.equal(await world.compact(), undefined)
      assert.equal(world.said.length, 1)
      assert.match(world.said[0], /pi writes its own summary instead/)
      assert.match(world.said[0], why)
    })
  }

  test('at pi’s threshold, what a compaction cannot shorten is left to the next plan', async () => {
    const world = await start(() => compacted(['e4'], { why: 'the newest messages alone have 88,922 tokens' }))
    world.entries = entries
    assert.deepEqual(await world.compact({ reason: 'threshold' }), { cancel: true })
    assert.deepEqual(await world.compact({ reason: 'threshold' }), { cancel: true })
    assert.equal(await world.compact({ reason: 'overflow' }), undefined)
    assert.equal(world.said.length, 2)
  })

  test('/holdfast says what was and what would be', async () => {
    const world = await start(path => (path === '/v1/plan' ? plan([EXTRACT, '3', '4'], { isCompacted: true }) : compacted(['e4'])))
    world.entries = entries
    await world.send(MESSAGES)
    world.said.length = 0
    await world.commands.holdfast.handler('', world.context)
    assert.deepEqual(world.said[0].split('\n'), [
      'Holdfast compacted the next request: 900 → 300 tokens of messages.',
      'The last request had 300 of 900 tokens of messages.',
      'Context now: 1,000 of 50,000 tokens.',
      '/compact would leave 300 of 900 tokens of messages: an extract and the newest 1 messages.',
    ])
  })
})

describe('recall', () => {
  const ask = (world, given) => world.tools.recall.execute('c9', given, undefined, undefined, world.context)

  test('the model’s arguments go to Holdfast with the name of the session, and the text comes back', async () => {
    const world = await start(() => ({ json: { text: '[abc123: lines 12-12 of 90]\nline 12', isError: false } }))
    const found = await ask(world, { id: 'abc123', lines: '12-12' })
    assert.equal(server.requests[0].path, '/v1/recall')
    assert.deepEqual(server.requests[0].body, { client: 'pi', session: 's-1', id: 'abc123', lines: '12-12' })
    assert.deepEqual(found.content, [{ type: 'text', text: '[abc123: lines 12-12 of 90]\nline 12' }])
    assert.equal(found.isError, false)
  })

  test('a mistake is told to the model, not to the user', async () => {
    const world = await start(() => ({ json: { text: 'no text is called zz', isError: true } }))
    assert.equal((await ask(world, { id: 'zz' })).isError, true)
    assert.deepEqual(world.said, [])
  })

  test('without a server the model is told that, too', async () => {
    await assert.rejects(ask(load('http://127.0.0.1:9'), { search: 'x' }), /nothing answers/)
  })
})

describe('a server that is too slow', () => {
  test('pi waits once for the time that is allowed, and then not again for a while', async () => {
    server = await serve(() => ({ json: {}, delayMs: 5_000 }))
    const slow = new HoldfastServer({ HOLDFAST_URL: server.url }, 50)
    await assert.rejects(slow.post('/v1/plan', {}), /did not answer within 0\.05 s/)
    await assert.rejects(slow.post('/v1/plan', {}), /did not answer within 0\.05 s/)
    assert.equal(server.requests.length, 1)
  })
})
