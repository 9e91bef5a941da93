import { describe, expect, test } from 'claude-code/testing'
import { answer, answerBelow, compact, MISSING, ran, startSession } from './fixtures/world'

const ENVELOPE = { session_id: 's', transcript_path: '/t.jsonl', cwd: '/' }
const stop = ($: any) => $.classic.Stop({ ...ENVELOPE, hook_event_name: 'Stop', stop_hook_active: false })
const stopSubagent = ($: any, id: string) =>
  $.classic.SubagentStop({
    ...ENVELOPE,
    hook_event_name: 'SubagentStop',
    stop_hook_active: false,
    agent_id: id,
    agent_type: 'Explore',
    agent_transcript_path: `/t/subagents/agent-${id}.jsonl`,
  })

describe('recording', () => {
  test('turns and subagents that end within half a minute are imported together, after it', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('[]') })
    await startSession($)
    await stop($)
    await stopSubagent($, 'a1')
    await stop($)
    expect(world.runs).toEqual([])
    await world.elapse(30_000)

    expect(world.runs.map(e => [...e.argv])).toEqual([
      ['holdfast', 'import', '/t.jsonl', '/t/subagents/agent-a1.jsonl', '--json'],
    ])
    await stop($)
    await world.elapse(30_000)
    expect(world.runs.length).toBe(2)
  })

  test('a new session has no transcript yet; a resumed one is imported', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('[]') })
    await startSession($)
    await world.elapse(30_000)
    expect(world.runs).toEqual([])
    await startSession($, { source: 'resume' })
    await world.elapse(30_000)

    expect(world.runs.length).toBe(1)
  })

  test('a compaction by anybody is imported', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('[]') })
    await startSession($)
    await $.classic.PreCompact({ ...ENVELOPE, hook_event_name: 'PreCompact', trigger: 'auto', custom_instructions: null })
    await $.classic.PostCompact({ ...ENVELOPE, hook_event_name: 'PostCompact', trigger: 'auto', compact_summary: '' })
    await world.elapse(30_000)

    expect(world.runs.map(e => e.argv[2])).toEqual(['/t.jsonl'])
  })

  test('the end of a session leaves the import to a process that goes on without it', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('') })
    await startSession($)
    await stop($)
    await $.session.end({ reason: 'other', sessionId: 's' })

    expect(world.runs[0].argv[0]).toBe('sh')
    expect(world.runs[0].argv.at(-1)).toBe('/t.jsonl')
    await world.elapse(30_000)
    expect(world.runs.length).toBe(1)
  })

  test('a Holdfast that is missing is missed once, for recording and compacting together', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => MISSING })
    await startSession($)
    await stop($)
    await world.elapse(30_000)
    await compact($)
    await compact($)

    expect(world.ownSummaries).toBe(2)
    expect(world.said).toEqual([
      'Claude Code goes on without Holdfast: there is no program holdfast on the PATH; install Holdfast.',
    ])
  })

  const FAILURES: [string, () => any][] = [
    ['an old Holdfast', () => ran('', 2, "Error: No such option '--json'")],
    ['a store that cannot be written', () => ran('', 2, 'the store is full')],
  ]
  for (const [name, run] of FAILURES) {
    test(`${name}: said once, and not tried again`, async ($: any, on: any) => {
      const world = answerBelow(on, { run })
      await startSession($)
      for (let turn = 0; turn < 3; turn++) {
        await stop($)
        await world.elapse(30_000)
      }
      await $.session.end({ reason: 'other', sessionId: 's' })

      expect(world.runs.length).toBe(1)
      expect(world.said.length).toBe(1)
      expect(world.said[0]).toContain('does not record')
    })
  }

  test('with the option record=false nothing is imported, at a compaction neither', { options: { record: false } }, async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])), tools: ['mcp__plugin_holdfast_holdfast__recall'] })
    await startSession($, { source: 'resume' })
    await stop($)
    await world.elapse(30_000)
    await $.session.compact({ trigger: 'manual', messages: [{ role: 'user', text: 'x', toolUses: [], handle: 'd' }] })
    await $.session.end({ reason: 'other', sessionId: 's' })

    expect(world.runs.map(e => e.argv[1])).toEqual(['compact'])
    expect(JSON.parse(world.runs[0].init.stdin).isRecorded).toBe(false)
  })
})
