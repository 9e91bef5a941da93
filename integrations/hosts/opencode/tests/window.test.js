import assert from 'node:assert/strict'
import { test } from 'node:test'

import { computeWindow } from '../src/window.js'

test("Holdfast's part of the window ends where opencode would compact, and never beyond the model's window", () => {
  // opencode keeps at most 32,000 tokens for the answer and Holdfast 20,000, or a quarter of a small window.
  assert.equal(computeWindow({ context: 200_000, output: 64_000 }), 188_000)
  assert.equal(computeWindow({ context: 128_000, output: 16_000 }), 128_000)
  assert.equal(computeWindow({ context: 32_000, output: 16_000 }), 21_333)
  assert.equal(computeWindow({ context: 400_000, input: 272_000, output: 128_000 }), 272_000)
  assert.equal(computeWindow({ context: 400_000, input: 272_000, output: 128_000 }, 50_000), 242_000)
})

test('without known limits Holdfast looks the model up itself', () => {
  assert.equal(computeWindow(undefined), undefined)
  assert.equal(computeWindow({ context: 0, output: 0 }), undefined)
})

test('limits that leave nothing for a request are not believed', () => {
  assert.equal(computeWindow({ context: 16_000, output: 16_000 }), 16_000)
})
