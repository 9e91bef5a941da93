import { describe, expect, test } from 'claude-code/testing'

import { answer, answerBelow, compact, MESSAGES, MISSING, ran, startSession } from './fixtures/world'

describe('compaction', () => {
  test('an extract, then the engine’s own messages, byte for byte', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['c', 'd'])) })
    const result = await compact($, { instructions: 'mind the rules' })

    expect(result.messages.length).toBe(3)
    expect(result.messages[0].text).toBe('The extract: never touch main.py.')
    expect(result.messages[0].handle).toBeUndefined()
    expect(result.messages[2]).toEqual(MESSAGES[3])
    expect(result.tokensBefore).toBe(5_000)
    expect(result.tokensAfter).toBe(4_400)
    expect(world.ownSummaries).toBe(0)
    expect(world.said.length).toBe(1)
    expect(world.said[0]).toContain('900 → 300 tokens')
  })

  test('results are built anew from their texts, so that a resumed session does not go back into the old branch', async ($: any, on: any) => {
    answerBelow(on, { run: () => ran(answer(['c', 'd'])) })
    const result = await compact($)

    expect(result.messages[1].handle).toBeUndefined()
    expect(result.messages[1].toolResults).toEqual([{ tool_use_id: 't1', text: 'x = 1', isError: false }])
  })

  for (const result of [{ type: 'image', file: {} }, [{ type: 'text' }, { type: 'image', source: {} }]]) {
    test(`results with pictures stay the engine's own: ${JSON.stringify(result)}`, async ($: any, on: any) => {
      answerBelow(on, { run: () => ran(answer(['c', 'd'])) })
      const shown = { ...MESSAGES[2], toolResults: [{ ...MESSAGES[2]!.toolResults![0], result }] }
      const compacted = await compact($, { messages: [...MESSAGES.slice(0, 2), shown, MESSAGES[3]] })

      expect(compacted.messages[1]).toEqual(shown)
    })
  }

  test('Holdfast gets the transcript, the window and the instructions, without structured results', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])) })
    await compact($, { instructions: 'mind the rules' })

    expect([...world.runs[0].argv]).toEqual(['holdfast', 'compact', '--stdin'])
    const input = JSON.parse(world.runs[0].init.stdin)
    expect(input.window).toBe(200_000)
    expect(input.trigger).toBe('manual')
    expect(input.instructions).toBe('mind the rules')
    expect(input.messages.length).toBe(4)
    expect(input.messages[1].toolUses).toEqual([{ tool_use_id: 't1', tool: 'Read', input: { file_path: 'x.py' } }])
    expect(input.messages[2].toolResults).toEqual([{ tool_use_id: 't1', text: 'x = 1', isError: false }])
    expect(input.messages[3].handle).toBe('d')
  })

  const FAILURES: [string, () => any, string][] = [
    ['Holdfast is not installed', () => MISSING, 'no program holdfast'],
    ['an old Holdfast', () => ran('', 2, 'Error: No such option: --stdin'), 'too old'],
    ['a crash in the middle', () => ran('{"messages": [', 0), 'another version'],
    ['a traceback', () => ran('', 1, 'Traceback\nValueError: no'), 'ValueError: no'],
    [
      'a transcript of a newer format',
      () => ran('', 2, '{"error": {"path": "messages[0].role", "why": "\'x\' is no role", "advice": "give user"}}'),
      'messages[0].role',
    ],
    ['a Holdfast that was killed', () => ran('{"messages": [', 1), 'holdfast ended with 1'],
    ['no command of that name', () => ran('', 2, "Error: No such command 'compact'."), 'too old'],
    ['an answer that was cut', () => ran(answer(['d']), 0, '', true), 'longer than'],
    ['nothing to gain', () => ran(answer(['d'], { why: 'it would not get smaller' })), 'not get smaller'],
    ['a handle that nobody gave', () => ran(answer(['z'])), 'not of the newest'],
    ['messages that are not the newest', () => ran(answer(['a', 'b'])), 'not of the newest'],
    ['an answer without an extract', () => ran(JSON.stringify({ ...JSON.parse(answer([])), messages: [] })), 'no extract'],
  ]
  for (const [name, run, why] of FAILURES) {
    test(`${name}: Claude Code's own summary, said once`, async ($: any, on: any) => {
      const world = answerBelow(on, { run })
      const first = await compact($)
      const second = await compact($)

      expect(first.messages[0].text).toBe('the built-in summary')
      expect(second.messages[0].text).toBe('the built-in summary')
      expect(world.ownSummaries).toBe(2)
      expect(world.said.length).toBe(1)
      expect(world.said[0]).toContain(why)
    })
  }

  test('no summary is computed in advance while Holdfast is there', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran('holdfast 0.1.0') })
    const result = await compact($, { trigger: 'precompute' })

    expect(result.skip).toContain('Holdfast')
    expect([...world.runs[0].argv]).toEqual(['holdfast', '--version'])
    expect(world.ownSummaries).toBe(0)
  })

  test('without Holdfast a summary is computed in advance as ever', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => MISSING })
    await compact($, { trigger: 'precompute' })

    expect(world.ownSummaries).toBe(1)
    expect(world.said).toEqual([])
  })

  test('sizes are Holdfast’s own where the engine knows none', async ($: any, on: any) => {
    answerBelow(on, { run: () => ran(answer([])), context: { window: 200_000 } })
    const result = await compact($)

    expect(result.messages.length).toBe(1)
    expect(result.tokensBefore).toBe(900)
    expect(result.tokensAfter).toBe(300)
  })

  const RECALL = ['Read', 'mcp__plugin_holdfast_holdfast__recall']
  test('where the model has recall, the transcript is imported, and the extract may say so', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])), tools: RECALL })
    await startSession($)
    await compact($)

    const commands = world.runs.map(e => e.argv.slice(1).join(' ')).sort()
    expect(commands).toEqual(['compact --stdin', 'import /t.jsonl --json'])
    expect(JSON.parse(world.runs.find(e => e.init.stdin !== undefined).init.stdin).isRecorded).toBe(true)
  })

  test('a session that was imported before is not waited for: the newest rows follow', async ($: any, on: any) => {
    let importing: Promise<any> | undefined
    const run = (e: any) => (e.argv[1] === 'import' ? (importing ?? ran('[]')) : ran(answer(['d'])))
    const world = answerBelow(on, { run, tools: RECALL })
    await startSession($)
    await compact($)
    importing = new Promise(() => {})
    const result = await compact($)

    expect(result.messages.length).toBe(2)
    expect(world.runs.filter(e => e.argv[1] === 'import').length).toBe(2)
    expect(JSON.parse(world.runs.findLast(e => e.init.stdin !== undefined).init.stdin).isRecorded).toBe(true)
  })

  test('an import that fails costs a second run, and no promise is left that cannot be kept', async ($: any, on: any) => {
    const run = (e: any) => (e.argv[1] === 'import' ? ran('', 2, 'disk full') : ran(answer(['d'])))
    const world = answerBelow(on, { run, tools: RECALL })
    await startSession($)
    const result = await compact($)

    expect(result.messages.length).toBe(2)
    expect(JSON.parse(world.runs.at(-1).init.stdin).isRecorded).toBe(false)
  })

  test('without recall, and for a subagent, nothing is imported', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['d'])) })
    await startSession($)
    await compact($)
    await compact($, { agentId: 'a1' })

    expect(world.runs.map(e => e.argv[1])).toEqual(['compact', 'compact'])
  })

  test('/holdfast says what was kept and saved, and what a compaction would leave', async ($: any, on: any) => {
    const world = answerBelow(on, { run: () => ran(answer(['c', 'd'])) })
    await $.session.start({ surface: 'terminal', isInteractive: true, cwd: '/' })
    expect(world.commands).toEqual(['holdfast'])
    const ask = () => $.command.run({ command: 'holdfast', args: '', origin: { kind: 'composer' } })
    expect((await ask()).text).toContain('No compaction by Holdfast')
    await compact($)
    await compact($)

    const { text } = await ask()
    expect(text).toContain('900 → 300 tokens')
    expect(text).toContain('The extract has 200 of the 300 tokens; 2 messages of yours and 1 tool calls are unchanged')
    expect(text).toContain('2 compactions saved 1,200 tokens')
    expect(text).toContain('Context now: 5,000 of 200,000 tokens')
    expect(text).toContain('/compact would leave 300 of 900 tokens')
    expect(world.status).toBe('1k saved')
  })

  test('/holdfast reads what the model sees: not what an earlier compaction replaced', async ($: any, on: any) => {
    const extract = 'The conversation before this point was replaced by this extract of it.'
    const messages = [...MESSAGES, { role: 'user', text: extract, toolUses: [] }, MESSAGES[3]]
    const world = answerBelow(on, { run: () => ran(answer([])), messages })
    await $.command.run({ command: 'holdfast', args: '', origin: { kind: 'composer' } })

    expect(JSON.parse(world.runs[0].init.stdin).messages.map((message: any) => message.text)).toEqual([extract, 'Done.'])
  })
})
