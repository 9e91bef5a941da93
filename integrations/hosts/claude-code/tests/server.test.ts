import { describe, expect, test } from 'claude-code/testing'
import { answer, answerBelow, compact, ran, settle } from './fixtures/world'

const served = (text: string, status = 200) => ({ value: { status, ok: status === 200, headers: {}, text } })

describe('the local server', () => {
  test('a server that runs is asked, and no process is started', async ($: any, on: any) => {
    const env = { HOLDFAST_URL: 'http://127.0.0.1:9000/', HOLDFAST_TOKEN: 'a-secret-of-16-or-more' }
    const world = answerBelow(on, { run: () => ran('', 1), serve: () => served(answer(['c', 'd'])), env })
    const result = await compact($, { instructions: 'mind the rules' })

    expect(result.messages.length).toBe(3)
    expect(world.runs).toEqual([])
    expect(world.fetches[0].url).toBe('http://127.0.0.1:9000/v1/compact')
    expect(world.fetches[0].init.method).toBe('POST')
    expect(world.fetches[0].init.headers['x-holdfast-token']).toBe('a-secret-of-16-or-more')
    const sent = JSON.parse(world.fetches[0].init.body)
    expect(sent.messages.length).toBe(4)
    expect(sent.instructions).toBe('mind the rules')
    expect(sent.model).toBeUndefined()
  })

  const FAILURES: [string, ((e: any) => any) | undefined][] = [
    ['nobody listens', undefined],
    ['another server listens', () => served('<html>', 404)],
    ['the token is wrong', () => served('{"error": "auth"}', 401)],
    ['a server that failed', () => served(answer(['d']), 500)],
    ['half an answer', () => served('{"messages": [')],
    ['an older version', () => served('{"messages": []}')],
  ]
  for (const [name, serve] of FAILURES) {
    test(`${name}: a process is started, nothing is said, and nobody looks again soon`, async ($: any, on: any) => {
      const world = answerBelow(on, { run: () => ran(answer(['d'])), serve })
      await compact($)
      await compact($)

      expect(world.fetches.length).toBe(1)
      expect(world.fetches[0].url).toBe('http://127.0.0.1:8642/v1/compact')
      expect(world.runs.length).toBe(2)
      expect(world.said.length).toBe(2)
      expect(world.said[0]).toContain('Holdfast compacted')
      await world.elapse(10 * 60_000)
      await compact($)
      expect(world.fetches.length).toBe(2)
    })
  }

  test('a server that hangs is waited for three seconds', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])), serve: () => new Promise(() => {}) })
    const compacting = compact($)
    while (world.fetches.length === 0) await settle()
    await world.elapse(3_000)

    expect((await compacting).messages.length).toBe(2)
    expect(world.runs.length).toBe(1)
  })

  for (const name of ['HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'all_proxy']) {
    test(`with ${name} no server is asked: Claude Code would send the transcript there`, async ($: any, on: any) => {
      const env = { [name]: 'http://proxy.example:3128' }
      const world = answerBelow(on, { run: () => ran(answer(['d'])), serve: () => served(answer(['d'])), env })
      await compact($)

      expect(world.fetches).toEqual([])
      expect(world.runs.length).toBe(1)
    })
  }

  test('an empty HOLDFAST_URL switches it off', async ($: any, on: any) => {
    const env = { HOLDFAST_URL: '' }
    const world = answerBelow(on, { run: () => ran(answer(['d'])), serve: () => served(answer(['d'])), env })
    await compact($)

    expect(world.fetches).toEqual([])
  })
})
