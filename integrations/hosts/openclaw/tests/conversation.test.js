import assert from 'node:assert/strict'
import { describe, test } from 'node:test'

import { applyPlan, completeMessages, describeMessages, estimateTokens } from '../conversation.js'

const IMAGE = { type: 'image', data: 'AAAA', mimeType: 'image/png' }
const THINKING = { type: 'thinking', thinking: 'hmm '.repeat(100), thinkingSignature: 'signed' }
export const MESSAGES = [
  { role: 'user', content: 'Never touch main.py.', timestamp: 1 },
  {
    role: 'assistant',
    content: [
      THINKING,
      { type: 'text', text: 'I look.' },
      { type: 'toolCall', id: 'toolu_1', name: 'exec', arguments: { command: 'ls' } },
      { type: 'toolCall', id: 'toolu_2', name: 'read', arguments: { path: 'a.png' } },
    ],
    api: 'anthropic-messages',
    timestamp: 2,
  },
  { role: 'toolResult', toolCallId: 'toolu_1', toolName: 'exec', content: [{ type: 'text', text: 'main.py' }], timestamp: 3 },
  {
    role: 'toolResult',
    toolCallId: 'toolu_2',
    toolName: 'read',
    content: [{ type: 'text', text: 'a picture' }, IMAGE],
    isError: true,
    timestamp: 4,
  },
  { role: 'assistant', content: [{ type: 'text', text: 'Done.' }], api: 'anthropic-messages', timestamp: 5 },
]

const apply = (rows, messages = MESSAGES) => applyPlan(rows, describeMessages(messages).ownMessages, 1)
const handlesOf = rows => rows.map(({ handle }) => ({ handle }))

describe('messages for Holdfast', () => {
  test('text, calls and results; the results of one answer are one message', () => {
    const { rows } = describeMessages(MESSAGES)
    assert.deepEqual(
      rows.map(({ role }) => role),
      ['user', 'assistant', 'user', 'assistant'],
    )
    assert.equal(rows[0].text, 'Never touch main.py.')
    assert.deepEqual(rows[1].toolUses, [
      { tool_use_id: 'toolu1', tool: 'exec', input: { command: 'ls' } },
      { tool_use_id: 'toolu2', tool: 'read', input: { path: 'a.png' } },
    ])
    assert.deepEqual(rows[2].toolResults, [
      { tool_use_id: 'toolu1', text: 'main.py' },
      { tool_use_id: 'toolu2', text: 'a picture', isError: true },
    ])
  })

  test('thinking and pictures count, though they are not handed over', () => {
    const { rows } = describeMessages(MESSAGES)
    assert.equal(rows[1].hiddenTokens, 100)
    assert.equal(rows[2].hiddenTokens, 1_600)
    assert.ok(!JSON.stringify(rows).includes('hmm'))
    assert.ok(estimateTokens(MESSAGES) > 1_700)
  })

  test('the ids of the transcript and those of a request are the same to Holdfast', () => {
    const sanitized = MESSAGES.map(message => JSON.parse(JSON.stringify(message).replaceAll('toolu_', 'toolu')))
    assert.deepEqual(describeMessages(sanitized).rows, describeMessages(MESSAGES).rows)
  })

  test('a summary of OpenClaw and other roles are words of the user', () => {
    const { rows } = describeMessages([
      { role: 'compactionSummary', summary: 'What was before.', timestamp: 1 },
      { role: 'custom', content: [{ type: 'text', text: 'a remark' }], timestamp: 2 },
    ])
    assert.deepEqual(
      rows.map(({ role, text }) => [role, text]),
      [
        ['user', 'What was before.'],
        ['user', 'a remark'],
      ],
    )
  })
})

describe('a plan', () => {
  test('that changes nothing returns the very same objects', () => {
    const shown = apply(handlesOf(describeMessages(MESSAGES).rows))
    assert.equal(shown.length, MESSAGES.length)
    assert.ok(shown.every((message, index) => message === MESSAGES[index]))
  })

  test('puts an extract before the messages that stay', () => {
    const shown = apply([{ role: 'user', text: 'the extract' }, { handle: '4' }])
    assert.deepEqual(shown[0], { role: 'user', content: 'the extract', timestamp: 1 })
    assert.equal(shown[1], MESSAGES[4])
  })

  test('replaces the text of one result, and keeps its picture and the other results', () => {
    const results = [{ tool_use_id: 'toolu2', text: 'a preview' }]
    const shown = apply([{ handle: '0' }, { handle: '1' }, { handle: '2', toolResults: results }, { handle: '4' }])
    assert.equal(shown[2], MESSAGES[2])
    assert.deepEqual(shown[3], { ...MESSAGES[3], content: [{ type: 'text', text: 'a preview' }, IMAGE] })
  })

  test('replaces the text of an answer, and keeps its thinking and calls', () => {
    const shown = apply([{ handle: '0' }, { handle: '1', text: 'short' }, { handle: '2' }, { handle: '4' }])
    assert.deepEqual(shown[1].content, [THINKING, { type: 'text', text: 'short' }, ...MESSAGES[1].content.slice(2)])
    assert.equal(MESSAGES[1].content[1].text, 'I look.')
  })

  const UNUSABLE = {
    'names a message that there is not': [{ handle: '7' }],
    'names a message twice': [{ handle: '0' }, { handle: '0' }],
    'replaces a result that there is not': [{ handle: '2', toolResults: [{ tool_use_id: 'other', text: '' }] }],
    'has a new message with calls': [{ role: 'assistant', text: '', toolUses: [] }],
    'has a new message without text': [{ role: 'user' }],
  }
  for (const [name, rows] of Object.entries(UNUSABLE)) {
    test(`that ${name} is not used`, () => assert.throws(() => apply(rows)))
  }
})

describe('the beginning that OpenClaw left out', () => {
  test('comes from the transcript', () => {
    const handed = MESSAGES.slice(3).map(message => ({ ...message, toolCallId: message.toolCallId?.replace('_', '') }))
    const completed = completeMessages(handed, MESSAGES)
    assert.deepEqual(completed.slice(0, 3), MESSAGES.slice(0, 3))
    assert.equal(completed[3], handed[0])
    assert.equal(completed.length, MESSAGES.length)
  })

  test('is not added where nothing is missing, or where the transcript is another one', () => {
    assert.equal(completeMessages(MESSAGES, MESSAGES), MESSAGES)
    assert.equal(completeMessages(MESSAGES, [{ role: 'user', content: 'else', timestamp: 9 }]), MESSAGES)
    assert.equal(completeMessages(MESSAGES, []), MESSAGES)
  })
})
