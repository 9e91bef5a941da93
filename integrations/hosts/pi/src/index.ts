/** What pi loads. It is TypeScript because pi gives its own packages to modules that it translates, and to no others. */

import { isContextOverflow } from '@earendil-works/pi-ai'
import type { ExtensionAPI } from '@earendil-works/pi-coding-agent'

import { registerHoldfast } from './extension.js'

export default function holdfast(pi: ExtensionAPI) {
  registerHoldfast(pi, isContextOverflow)
}
