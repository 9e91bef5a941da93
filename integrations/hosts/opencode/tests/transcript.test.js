import assert from 'node:assert/strict'
import { test } from 'node:test'

import { showMessages, UnusableAnswer, writeTranscript } from '../src/transcript.js'
import { makeCall, makePrompt, makeStep, makeText } from './helpers.js'

const REMINDER = '<system-reminder>\nPlan mode is active.\n</system-reminder>'

function makeSession() {
  return [
    makePrompt('m1', makeText('Why is it slow?')),
    makeStep('m2', { type: 'step-start' }, { type: 'reasoning', text: 'hmm '.repeat(10) }, makeText('I look.'), makeCall('c1', 'one'), makeCall('c2', 'two')),
    makeStep('m3', makeText('It is the disk.')),
    makePrompt('m4', makeText('Then change it.')),
  ]
}

test('a step is an answer with calls and then a message with their results, as providers have it', () => {
  assert.deepEqual(writeTranscript(makeSession()), [
    { handle: 'm1', role: 'user', text: 'Why is it slow?' },
    {
      handle: 'm2',
      role: 'assistant',
      text: 'I look.',
      toolUses: [
        { tool_use_id: 'c1', tool: 'bash', input: { command: 'cat c1' } },
        { tool_use_id: 'c2', tool: 'bash', input: { command: 'cat c2' } },
      ],
      usage: { input: 900, output: 40, cacheRead: 5_000, cacheWrite: 100 },
      hiddenTokens: 10,
    },
    {
      handle: 'm2/results',
      role: 'user',
      toolResults: [
        { tool_use_id: 'c1', text: 'one', isError: false },
        { tool_use_id: 'c2', text: 'two', isError: false },
      ],
    },
    {
      handle: 'm3',
      role: 'assistant',
      text: 'It is the disk.',
      toolUses: [],
      usage: { input: 900, output: 40, cacheRead: 5_000, cacheWrite: 100 },
    },
    { handle: 'm4', role: 'user', text: 'Then change it.' },
  ])
})

test('results have the texts that opencode would send: errors, cleared and interrupted ones too', () => {
  const step = makeStep(
    'm1',
    makeCall('failed', '', { status: 'error', error: 'no such file' }),
    makeCall('cleared', 'long gone', { time: { start: 1, end: 2, compacted: 3 }, attachments: [{ mime: 'image/png' }] }),
    makeCall('stopped', '', { status: 'error', error: 'Tool execution aborted', metadata: { interrupted: true, output: 'half' } }),
    makeCall('running', '', { status: 'running' }),
  )
  const [, { toolResults, hiddenTokens }] = writeTranscript([step])
  assert.deepEqual(toolResults, [
    { tool_use_id: 'failed', text: 'no such file', isError: true },
    { tool_use_id: 'cleared', text: '[Old tool result content cleared]', isError: false },
    { tool_use_id: 'stopped', text: 'half', isError: false },
    { tool_use_id: 'running', text: '[Tool execution was interrupted]', isError: true },
  ])
  assert.equal(hiddenTokens, undefined)
})

test('pictures, files and reminders are counted and not written', () => {
  const picture = { type: 'file', mime: 'image/png', url: 'data:image/png;base64,AAAA' }
  const paper = { type: 'file', mime: 'application/pdf', url: 'data:application/pdf;base64,AAAA' }
  const text = { type: 'file', mime: 'text/plain', url: 'data:text/plain;base64,AAAA' }
  const prompt = makePrompt('m1', makeText('Look.'), picture, paper, text, makeText(REMINDER, { synthetic: true }))
  const reminderTokens = Math.ceil(REMINDER.length / 4)
  const hiddenTokens = 1_600 + 5_000 + reminderTokens
  assert.deepEqual(writeTranscript([prompt]), [{ handle: 'm1', role: 'user', text: 'Look.', hiddenTokens }])
  const withPicture = makeStep('m2', makeCall('c1', 'see', { attachments: [picture] }))
  assert.equal(writeTranscript([withPicture])[1].hiddenTokens, 1_600)
})

test("what the request of opencode's own summary took says nothing of the session's requests", () => {
  const summary = makeStep('m1', makeText('A summary.'))
  summary.info.summary = true
  assert.equal(writeTranscript([summary])[0].usage, undefined)
})

test('a reminder that the user wrote is a text', () => {
  const [written] = writeTranscript([makePrompt('m1', makeText(REMINDER))])
  assert.equal(written.text, REMINDER)
})

test('what opencode does not send is not in the transcript', () => {
  const overflow = makeStep('m2', makeText('half'))
  overflow.info.error = { name: 'ContextOverflowError' }
  const stopped = makeStep('m3', makeText('half'))
  stopped.info.error = { name: 'MessageAbortedError' }
  const stoppedAtOnce = makeStep('m4', { type: 'step-start' }, { type: 'reasoning', text: 'hm' })
  stoppedAtOnce.info.error = { name: 'MessageAbortedError' }
  const empty = makeStep('m5', { type: 'step-start' })
  const ignored = makePrompt('m6', makeText('a note', { ignored: true }))
  const handles = writeTranscript([overflow, stopped, stoppedAtOnce, empty, ignored]).map(({ handle }) => handle)
  assert.deepEqual(handles, ['m3'])
})

test("opencode's own compaction and sub-tasks are the words that it sends for them", () => {
  const [compaction, task] = writeTranscript([
    makePrompt('m1', { type: 'compaction', auto: true }),
    makePrompt('m2', { type: 'subtask', prompt: 'look' }),
  ])
  assert.equal(compaction.text, 'What did we do so far?')
  assert.equal(task.text, 'The following tool was executed by the user')
})

test('messages that are kept are the very objects of the host', () => {
  const session = makeSession()
  const shown = showMessages(session, [{ handle: 'm1' }, { handle: 'm2' }, { handle: 'm2/results' }, { handle: 'm4' }])
  assert.equal(shown.length, 3)
  assert.equal(shown[0], session[0])
  assert.equal(shown[1], session[1])
  assert.equal(shown[2], session[3])
})

test('changed texts and results are in copies, beside reasoning as it was; the messages of the host stay whole', () => {
  const session = makeSession()
  const before = structuredClone(session)
  const shown = showMessages(session, [
    { handle: 'm1', text: 'Why…' },
    { handle: 'm2' },
    { handle: 'm2/results', toolResults: [{ tool_use_id: 'c2', text: 'a preview' }] },
  ])
  assert.deepEqual(session, before)
  assert.deepEqual(shown[0].parts.map(({ text }) => text), ['Why…'])
  assert.equal(shown[1].parts[1], session[1].parts[1])
  assert.deepEqual(shown[1].parts.slice(3).map(({ state }) => state.output), ['one', 'a preview'])
  assert.deepEqual(writeTranscript(shown)[2].toolResults[1].text, 'a preview')
})

test('the text of an error is replaced where opencode reads it', () => {
  const session = [
    makeStep('m1', makeCall('c1', '', { status: 'error', error: 'long' }), makeCall('c2', '', { status: 'error', metadata: { interrupted: true, output: 'long' } })),
  ]
  const results = ['c1', 'c2'].map(id => ({ tool_use_id: id, text: 'short' }))
  const shown = showMessages(session, [{ handle: 'm1' }, { handle: 'm1/results', toolResults: results }])
  assert.deepEqual(writeTranscript(shown)[1].toolResults.map(({ text }) => text), ['short', 'short'])
})

test('an extract becomes a message of the user that opencode can convert', () => {
  const session = makeSession()
  const [extract] = showMessages(session, [{ role: 'user', text: 'what was said' }, { handle: 'm4' }])
  assert.equal(extract.info.role, 'user')
  assert.equal(extract.info.sessionID, 'ses_test')
  assert.deepEqual(extract.info.model, session[0].info.model)
  assert.deepEqual(writeTranscript([extract]), [{ handle: extract.info.id, role: 'user', text: 'what was said' }])
})

const UNUSABLE = {
  'an unknown message': [{ handle: 'm9' }],
  'another order': [{ handle: 'm3' }, { handle: 'm1' }],
  'a message twice': [{ handle: 'm1' }, { handle: 'm1' }],
  'a call without its result': [{ handle: 'm2' }, { handle: 'm3' }],
  'a call without its result at the end': [{ handle: 'm1' }, { handle: 'm2' }],
  'a message between a call and its result': [{ handle: 'm2' }, { handle: 'm3' }, { handle: 'm2/results' }],
  'an extract between a call and its result': [{ handle: 'm2' }, { role: 'user', text: 'a' }, { handle: 'm2/results' }],
  'a result without its call': [{ handle: 'm1' }, { handle: 'm2/results' }],
  'the result of an unknown call': [{ handle: 'm2' }, { handle: 'm2/results', toolResults: [{ tool_use_id: 'c9', text: '' }] }],
  'a result without a text': [{ handle: 'm2' }, { handle: 'm2/results', toolResults: [{ tool_use_id: 'c1' }] }],
  'a new message of the assistant': [{ role: 'assistant', text: 'I said so' }],
  'an empty new message': [{ role: 'user', text: '' }],
  'a message that is none': [null],
  'nothing': [],
}

for (const [what, rows] of Object.entries(UNUSABLE)) {
  test(`an answer with ${what} is refused`, () => {
    assert.throws(() => showMessages(makeSession(), rows), UnusableAnswer)
  })
}
