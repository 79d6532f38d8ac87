// Runs main.js for a function or assert problem. Job on descriptor 3 (JSON, then the nonce), result on 4.
// A console.assert that does not hold ends the run. The test of an assert problem, test.js, is a function of its own,
// which sees the program's names but is given what tests decide by, whatever the program has called so or changed; the
// run is complete when that function has returned and the event loop has run dry.
'use strict'
const fs = require('fs')
const vm = require('vm')
const { randomBytes } = require('crypto')
const { createRequire } = require('module')

const NONCE = 32
const size = fs.fstatSync(3).size
const read = (start, length) => {
  const bytes = Buffer.alloc(length)
  fs.readSync(3, bytes, 0, length, start)
  return bytes
}
const { writeSync } = fs
const evaluate = eval // where a script's names are found; vm's ways go through what a program may change
const { stringify } = JSON
const exit = process.reallyExit.bind(process)

function answer (body) {
  const frame = Buffer.concat([read(size - NONCE, NONCE), Buffer.from(body)])
  for (let done = 0; done < frame.length;) done += writeSync(4, frame, done, frame.length - done, done)
}

function complain (error, stage) {
  let text = 'an error'
  try { text = String((error && error.name ? `${error.name}: ${error.message}` : error)).slice(0, 300) } catch {}
  const assertion = error instanceof Failed || (error && error.code === 'ERR_ASSERTION')
  const memory = error instanceof RangeError && /allocation failed|Invalid (array|string) length/.test(text)
  const kind = assertion ? 'assertion' : memory ? 'memory' : 'error'
  answer(stringify({ ok: false, error: text, stage, kind }))
  exit(1)
}

const own = { id: 'main.js', exports: {}, children: [] } // the program's, which is no main module: its function is asked for

class Failed extends Error { get name () { return 'AssertionError' } }
class Unencodable extends Error {}

function encodeNumber (value) {
  if (!Number.isInteger(value)) return Number.isNaN(value) ? 'NaN' : String(value)
  if (Number.isSafeInteger(value)) return Object.is(value, -0) ? '0' : String(value)
  return encodeBig(BigInt(value))
}

function encodeBig (value) {
  return `{"i":"${value < 0n ? '-' : ''}0x${(value < 0n ? -value : value).toString(16)}"}`
}

const encodeAll = (items, depth) => '[' + Array.from(items, (item) => encode(item, depth)).join(',') + ']'
const encodePairs = (pairs, depth) => `{"d":[${Array.from(pairs, (pair) => encodeAll(pair, depth)).join(',')}]}`

// The text that sandbox/values.py decodes. A number without a fraction is an int: this language has one kind.
function encode (value, depth = 0) {
  if (depth > 200) throw new Unencodable('a value nested deeper than 200')
  if (value === undefined || value === null) return 'null'
  if (typeof value === 'boolean' || typeof value === 'string') return stringify(value)
  if (typeof value === 'number') return encodeNumber(value)
  if (typeof value === 'bigint') return encodeBig(value)
  if (Array.isArray(value) || value instanceof Set || (ArrayBuffer.isView(value) && !(value instanceof DataView))) {
    return encodeAll(value, depth + 1)
  }
  if (value instanceof Map) return encodePairs(value, depth + 1)
  if (typeof value === 'object') return encodePairs(Object.entries(value), depth + 1)
  throw new Unencodable(`a ${typeof value}`)
}

// A program with import and export statements, or with await at top level, is a module.
const IMPORTS = /^import\s[^'"()]*['"][^'"]+['"];?[ \t]*$/gm
const isModule = (error) => error instanceof SyntaxError && /import statement|'export'|'import\.meta'|await is only/.test(error.message)

async function loadModule (head, tail) {
  fs.writeFileSync('main.mjs', head + fs.readFileSync('main.js', 'utf8') + tail)
  return import(process.cwd() + '/main.mjs')
}

function findExport (exported, name) {
  const dot = name.indexOf('.')
  const Class = exported[dot < 0 ? 'Solution' : name.slice(0, dot)] || exported.default
  const free = dot < 0 ? exported[name] : undefined
  if (free) return free
  if (!Class) throw new ReferenceError(`${name} is not exported`)
  return method(Class, name, dot)
}

function method (Class, name, dot) {
  if (typeof Class === 'function' && dot < 0 && (Class.name === name || !isClass(Class))) return Class
  const object = typeof Class === 'function' ? new Class() : Class
  const word = name.slice(dot + 1)
  const found = object[word] ? object : Class
  return found[word].bind(found)
}

const isClass = (made) => /^class\b/.test(Function.prototype.toString.call(made)) || Object.keys(made.prototype || {}).length > 0

function find (name) {
  const look = (text) => vm.runInThisContext(`typeof ${text} === 'undefined' ? undefined : ${text}`)
  const dot = name.indexOf('.')
  const Class = look(dot < 0 ? 'Solution' : name.slice(0, dot))
  const free = dot < 0 ? look(name) || own.exports[name] : undefined
  if (free) return free
  if (!Class && dot < 0 && typeof own.exports === 'function') return method(own.exports, name, dot)
  if (!Class) throw new ReferenceError(`${name} is not defined`)
  return method(Class, name, dot)
}

// A script, whose names a test finds where it is evaluated; or a module, whose names it finds only inside.
async function loadProgram ({ head, tail }) {
  if (!head) {
    try {
      vm.runInThisContext(fs.readFileSync('main.js', 'utf8'), { filename: 'main.js' })
      return null
    } catch (error) {
      if (!isModule(error)) throw error
    }
  }
  return loadModule(head, tail)
}

// What exists of an object stays as it is.
function lock (object, keys = Reflect.ownKeys(object)) {
  for (const key of keys) {
    const found = Reflect.getOwnPropertyDescriptor(object, key)
    if (found.configurable && 'value' in found) Object.defineProperty(object, key, { writable: false, configurable: false })
  }
}

function readTest (load, holds) {
  const whole = fs.readFileSync('test.js', 'utf8')
  fs.unlinkSync('test.js')
  const [assert, util] = [load('assert'), load('util')]
  const kept = { __proto__: null, assert, 'assert/strict': assert.strict, util }
  for (const each of [assert, assert.strict, util, JSON, Number, Object, Array]) lock(each)
  lock(Math, Object.getOwnPropertyNames(Math).filter((key) => key !== 'random')) // which a program may well make its own
  lock(process, ['exit'])
  const given = {
    console: Object.create(console, { assert: { value: holds } }),
    require: Object.assign((name) => kept[String(name).replace(/^node:/, '')] || load(name), load),
    JSON, Math, Number, Object, Array, process
  }
  const text = `(async (${Object.keys(given)}) => { await (async () => {\n${whole.replace(IMPORTS, '')}\n})() })\n//# sourceURL=test.js`
  const name = `sandbox_${randomBytes(8).toString('hex')}`
  const head = (whole.match(IMPORTS) || []).map((line) => line + '\n').join('')
  return { head, name, text, tail: `\n;export const ${name} = ${text}\n`, given: Object.values(given) }
}

async function main () {
  const job = JSON.parse(read(0, size - NONCE).toString())
  let stage = 'program'
  const load = createRequire(process.cwd() + '/main.js')
  Object.assign(globalThis, { require: load, module: own, exports: own.exports })
  const holds = (value, ...words) => {
    if (!value) throw (failed = failed || new Failed(words.join(' ') || 'console.assert'))
  }
  let failed = null // kept, for the program may catch it
  console.assert = holds
  const fail = (error) => complain(error, 'call')
  process.on('uncaughtException', fail)
  process.on('unhandledRejection', fail)
  try {
    if (job.kind === 'assert') stage = 'call'
    const test = job.kind === 'assert' ? readTest(load, holds) : { head: '', tail: '' }
    const exported = await loadProgram(test)
    if (job.kind === 'assert') {
      const run = exported ? exported[test.name] : evaluate(test.text)
      let ended = false
      process.on('beforeExit', (code) => {
        if (failed) fail(failed)
        if (code === 0 && ended) answer('{"ok": true, "values": []}')
      })
      await run(...test.given)
      ended = true
      return
    }
    stage = 'call'
    const value = await (exported ? findExport(exported, job.fn_name) : find(job.fn_name))(...job.args)
    answer(`{"ok": true, "values": [${encode(value)}]}`)
    exit(0)
  } catch (error) {
    complain(error, error instanceof Unencodable ? 'value' : stage)
  }
}

main()
