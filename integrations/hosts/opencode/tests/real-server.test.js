/** The plugin with the real `holdfast serve`, if `holdfast` is on the PATH. */

import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, test } from 'node:test'

import plugin from '../src/plugin.js'
import { writeTranscript } from '../src/transcript.js'
import { makeCall, makeClient, makePrompt, makeStep, makeText, SESSION } from './helpers.js'

const isHoldfastThere = spawnSync('holdfast', ['--version']).status === 0
const skip = isHoldfastThere ? false : 'there is no holdfast on the PATH'
const folder = mkdtempSync(join(tmpdir(), 'holdfast-opencode-'))
after(() => rmSync(folder, { recursive: true }))

/** Start a server on the store of these tests. */
async function startHoldfast() {
  const server = spawn('holdfast', ['serve', '--port', '0', '--store', join(folder, 'store.db'), '--json'])
  for await (const line of createInterface(server.stdout)) {
    process.env.HOLDFAST_URL = JSON.parse(line).url
    break
  }
  return () => new Promise(resolve => server.once('exit', resolve) && server.kill())
}

/** System prompt and tools, of which the transcript says nothing. */
const SETUP_TOKENS = 6_000

function makeLog(step) {
  const lines = Array.from({ length: 150 }, (_, line) => `step ${step}, line ${line}: ${(line * 7919) % 1009} ms of waiting for lock-${step}-${line}`)
  return lines.join('\n')
}

let stop = async () => {}
after(() => stop())

test('a session many times the window: what was shown stays the same until a compaction, also after a restart', { skip }, async () => {
  stop = await startHoldfast()
  const client = makeClient({ context: 40_000, output: 4_000 })
  let hooks = await plugin.server({ client })
  const session = [makePrompt('m000', makeText('Which lock is slow? Never restart the server.'))]
  let before = []
  let breaks = 0
  for (let step = 1; step <= 40; step++) {
    if (step % 10 === 0) {
      // Both processes start anew: nothing that is remembered only in memory may matter.
      await stop()
      stop = await startHoldfast()
      hooks = await plugin.server({ client })
    }
    const shown = [...session]
    await hooks['experimental.chat.messages.transform']({}, { messages: shown })
    // The provider reads the texts, not the ids of messages.
    const texts = writeTranscript(shown).map(message => JSON.stringify({ ...message, handle: undefined }))
    const tokens = SETUP_TOKENS + Math.ceil(texts.join('').length / 2.2)
    assert.ok(tokens < 40_000, `request ${step} has ${tokens} tokens; ${client.toasts.join(' ')}`)
    assert.match(texts.join('\n'), /Never restart the server/)
    if (!before.every((text, index) => text === texts[index])) breaks += 1
    before = texts
    const answer = makeStep(`m${String(step).padStart(3, '0')}`, makeCall(`c${step}`, makeLog(step)))
    answer.info.tokens = { input: tokens, output: 40, reasoning: 0, cache: { read: 0, write: 0 } }
    session.push(answer)
  }
  const found = await hooks.tool.recall.execute({ search: 'lock-3-77' }, { sessionID: SESSION })
  const [, id] = found.match(/recall\(id="(\w+)"\)/) ?? assert.fail(found)
  const line = await hooks.tool.recall.execute({ id, lines: '78' }, { sessionID: SESSION })
  const compactions = client.toasts.filter(toast => /^Holdfast compacted/.test(toast)).length
  assert.deepEqual(client.toasts.length, compactions, client.toasts.join('\n'))
  assert.ok(compactions >= 3)
  assert.equal(breaks, compactions)
  assert.match(line, /step 3, line 77: 327 ms of waiting/)
})
