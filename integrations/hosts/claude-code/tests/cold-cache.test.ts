import { describe, expect, test } from 'claude-code/testing'
import { answer, answerBelow, MISSING, ran, startSession } from './fixtures/world'

const HOUR_MS = 60 * 60_000
const PRICES = { cacheWritePrices: { fiveMinutes: 6.25, oneHour: 10 } }
const COMPACTED = answer(['d'], { tokensBefore: 190_000, tokensAfter: 20_000, ...PRICES })
const CONTEXT = { window: 1_000_000, tokens: 200_000 }

const submit = ($: any, more: Record<string, unknown> = {}) =>
  $.prompt.submit({ text: 'go on', wait: false, origin: { kind: 'composer' }, ...more })

const finishTurn = ($: any, written: Record<string, number> = { ephemeral_1h_input_tokens: 10, ephemeral_5m_input_tokens: 0 }) =>
  $.turn.complete({
    answer: 'ok',
    durationMs: 1,
    isAborted: false,
    turnId: 't',
    reason: 'answer',
    usage: {
      input_tokens: 1,
      output_tokens: 1,
      cache_read_input_tokens: 1,
      cache_creation_input_tokens: 10,
      model: 'claude-opus-5-5',
      ...written,
    },
  })

describe('a cold cache', () => {
  test('the person is told what the prompt costs, and what it would cost after a compaction', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Send as it is' })
    await finishTurn($)
    await world.elapse(HOUR_MS + 12 * 60_000)
    const entered = await submit($)

    expect(entered.text).toBe('go on')
    expect(JSON.parse(world.runs[0].init.stdin).model).toBe('claude-opus-5-5')
    expect(world.questions.length).toBe(1)
    expect(world.questions[0]).toContain('1 h 12 min')
    expect(world.questions[0]).toContain('200k tokens anew (about $2.00 at list price)')
    expect(world.questions[0]).toContain('would leave 30k (about $0.30 at list price)')
    expect(world.prompts).toEqual(['go on'])
  })

  test('the person who compacts first gets the prompt back in the box', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Compact first' })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    const entered = await submit($)

    expect(entered.drop).toContain('comes back')
    expect(world.prompts).toEqual([])
    await world.elapse(1)
    expect(world.ranCommands).toEqual(['/compact'])
    expect(world.drafts).toEqual(['go on'])
  })

  test('once for each gap', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Send as it is' })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($)
    await submit($)
    expect(world.questions.length).toBe(1)
    await finishTurn($)
    await submit($)
    expect(world.questions.length).toBe(1)
    await world.elapse(2 * HOUR_MS)
    await submit($)

    expect(world.questions.length).toBe(2)
  })

  test('five minutes are cold where the session caches for five minutes', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Send as it is' })
    await finishTurn($, { ephemeral_1h_input_tokens: 0, ephemeral_5m_input_tokens: 10 })
    await world.elapse(6 * 60_000)
    await submit($)

    expect(world.questions[0]).toContain('about $1.25 at list price')
  })

  test('a session that is resumed cold is told by the engine’s own figures', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: { window: 200_000 }, choose: () => 'Send as it is' })
    await startSession($, {
      source: 'resume',
      seconds_since_last_response: 3 * 24 * 3_600,
      context_tokens: 180_000,
      prompt_cache_likely_expired: true,
      estimated_cache_write_usd: 0.9,
    })
    await submit($)

    expect(world.questions[0]).toContain('3 days')
    expect(world.questions[0]).toContain('180k tokens anew (about $0.90')
  })

  test('a resumed session that was compacted after its last answer is as small as it is', async ($: any, on: any) => {
    const small = answer(['d'], { tokensBefore: 18_000, tokensAfter: 18_000, why: 'it would not get smaller' })
    const world = answerBelow(on, { run: () => ran(small), context: { window: 200_000 }, choose: () => 'Compact first' })
    await startSession($, {
      source: 'resume',
      seconds_since_last_response: 3 * 24 * 3_600,
      context_tokens: 180_000,
      prompt_cache_likely_expired: true,
    })
    await submit($)

    expect(world.questions).toEqual([])
    expect(world.said).toEqual([])
    expect(world.prompts).toEqual(['go on'])
  })

  test('where nobody can be asked it is said, and the prompt is sent', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($, { origin: { kind: 'sdk' } })

    expect(world.questions).toEqual([])
    expect(world.said[0]).toContain('200k tokens anew')
    expect(world.prompts).toEqual(['go on'])
  })

  test('a question that is dismissed sends the prompt', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($)

    expect(world.questions.length).toBe(1)
    expect(world.prompts).toEqual(['go on'])
  })

  test('without Holdfast there is nothing to offer; the size is said and the prompt is sent', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => MISSING, context: CONTEXT })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($)

    expect(world.said.length).toBe(1)
    expect(world.said[0]).toContain('200k tokens anew.')
    expect(world.prompts).toEqual(['go on'])
  })

  test('a prompt with pictures could not be put back, so no compaction is offered', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Compact first' })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($, { attachments: [{ type: 'image' }] })

    expect(world.questions).toEqual([])
    expect(world.prompts).toEqual(['go on'])
  })

  const QUIET: [string, number, Record<string, unknown>, number?][] = [
    ['a warm cache', 0.9 * HOUR_MS, {}],
    ['a small conversation', 2 * HOUR_MS, {}, 99_999],
    ['a slash command', 2 * HOUR_MS, { text: '/compact' }],
    ['a notification', 2 * HOUR_MS, { origin: { kind: 'task-notification' } }],
    ['a prompt typed while a turn runs', 2 * HOUR_MS, { turnId: 't' }],
  ]
  for (const [name, idleMs, more, tokens] of QUIET) {
    test(`${name}: nothing is said`, async ($: any, on: any) => {
      const context = { ...CONTEXT, tokens: tokens ?? CONTEXT.tokens }
      const world = answerBelow(on, { run: () => ran(COMPACTED), context, choose: () => 'Compact first' })
      await finishTurn($)
      await world.elapse(idleMs)
      await submit($, more)

      expect(world.questions).toEqual([])
      expect(world.said).toEqual([])
      expect(world.prompts.length).toBe(1)
    })
  }

  test('with the option coldCacheTokens=0 nothing is ever said', { options: { coldCacheTokens: 0 } }, async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(COMPACTED), context: CONTEXT, choose: () => 'Compact first' })
    await finishTurn($)
    await world.elapse(2 * HOUR_MS)
    await submit($)

    expect(world.questions).toEqual([])
    expect(world.prompts).toEqual(['go on'])
  })
})
