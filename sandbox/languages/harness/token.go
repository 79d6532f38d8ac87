// The completion token of an assert program in Go: written when the test's main has returned, and only then.
// That main was renamed to SANDBOX_TOKEN_main. Job on descriptor 3, result on 4.
package main

import (
	sandboxOS "os"
	sandboxSyscall "syscall"
)

func main() {
	SANDBOX_TOKEN_begin()
	SANDBOX_TOKEN_main()
	var job sandboxSyscall.Stat_t
	if sandboxSyscall.Fstat(3, &job) != nil {
		sandboxOS.Exit(1)
	}
	frame := make([]byte, 32)
	if size, err := sandboxSyscall.Pread(3, frame, job.Size-32); err != nil || size != 32 {
		sandboxOS.Exit(1)
	}
	frame = append(frame, `{"ok": true, "values": []}`...)
	if _, err := sandboxSyscall.Write(4, frame); err != nil {
		sandboxOS.Exit(1)
	}
}

// Compiles only where these are Go's own, so that a program's `panic` or `true` stands for nothing in the test.
func SANDBOX_TOKEN_builtin() (x int) { panic(0) }

const _, _, _ = true, false, len("")

var _, _ = map[bool]int{true: 1, 1 != 1: 2}, map[bool]int{false: 1, 1 == 1: 2}
var _, _, _ = []int(nil), (*int)(nil), (func())(nil)
