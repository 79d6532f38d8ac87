// Built into checkers and interactors in Go, whose chance no program is to foresee: before Go 1.20 it is always the same.
package main

import (
	sandboxBinary "encoding/binary"
	sandboxRand "math/rand"
	sandboxOS "os"
)

func init() {
	var seed int64
	source, err := sandboxOS.Open("/dev/urandom")
	if err == nil {
		err = sandboxBinary.Read(source, sandboxBinary.LittleEndian, &seed)
	}
	if err != nil {
		panic(err)
	}
	source.Close()
	sandboxRand.Seed(seed)
}
