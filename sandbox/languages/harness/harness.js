// Runs main.js for a function or assert problem. Job on descriptor 3 (JSON, then the nonce), result on 4.
// A console.assert that does not hold ends the run; an assert run is complete when its event loop has run dry.
'use strict'
const fs = require('fs')
const vm = require('vm')
const { createRequire } = require('module')

const NONCE = 32
const size = fs.fstatSync(3).size
const read = (start, length) => {
  const bytes = Buffer.alloc(length)
  fs.readSync(3, bytes, 0, length, start)
  return bytes
}
const { writeSync } = fs
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
const isModule = (error) => error instanceof SyntaxError && /import statement|'export'|'import\.meta'|await is only/.test(error.message)

async function loadModule () {
  fs.copyFileSync('main.js', 'main.mjs')
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

async function main () {
  const job = JSON.parse(read(0, size - NONCE).toString())
  let stage = 'program'
  Object.assign(globalThis, { require: createRequire(process.cwd() + '/main.js'), module: own, exports: own.exports })
  let failed = null // kept, for the program may catch it
  console.assert = (holds, ...words) => {
    if (!holds) throw (failed = failed || new Failed(words.join(' ') || 'console.assert'))
  }
  const fail = (error) => complain(error, 'call')
  process.on('uncaughtException', fail)
  process.on('unhandledRejection', fail)
  try {
    if (job.kind === 'assert') stage = 'call'
    let exported = null
    const source = fs.readFileSync('main.js', 'utf8')
    try {
      vm.runInThisContext(source, { filename: 'main.js' })
    } catch (error) {
      if (!isModule(error)) throw error
      exported = await loadModule()
    }
    if (job.kind === 'assert') {
      process.on('beforeExit', (code) => {
        if (failed) fail(failed)
        if (code === 0) answer('{"ok": true, "values": []}')
      })
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
