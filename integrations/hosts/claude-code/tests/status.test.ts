import { describe, expect, test } from 'claude-code/testing'
import { answer, answerBelow, ran, settle } from './fixtures/world'

const start = ($: any, isInteractive = true) => $.session.start({ surface: 'terminal', isInteractive, cwd: '/' })
const measure = async ($: any, tokens: number) => {
  await $.session.measure({ context: { tokens, window: 200_000 }, rateLimits: [], changed: ['context'] })
  await settle()
}

describe('the status line', () => {
  test('it says what the context is, and from half of the window on what a compaction would leave', async ($: any, on: any) => {
    const run = () => ran(answer(['d'], { tokensBefore: 90_000, tokensAfter: 10_000 }))
    const world = answerBelow(on, { run })
    await start($)
    await measure($, 60_000)
    expect(world.status).toBe('60k of 200k tokens')
    expect(world.runs).toEqual([])
    await measure($, 100_000)

    expect(world.status).toBe('100k of 200k tokens · /compact leaves 20k')
  })

  test('the estimate is made again only when the context has grown by a tenth of the window', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'], { tokensBefore: 90_000, tokensAfter: 10_000 })) })
    await start($)
    for (const tokens of [100_000, 101_000, 119_000, 120_000, 121_000]) await measure($, tokens)

    expect(world.runs.length).toBe(2)
  })

  test('an estimate that fails says nothing', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('', 1, 'no') })
    await start($)
    await measure($, 150_000)

    expect(world.said).toEqual([])
    expect(world.status).toBe('150k of 200k tokens')
  })

  test('nobody sees it in a run without a terminal, so nothing is estimated', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])) })
    await start($, false)
    await measure($, 150_000)

    expect(world.runs).toEqual([])
    expect(world.status).toBe('')
  })
})
