// Fills so many MiB, says so, and goes on using them until standard input ends. usage: fill MIB
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

func main() {
	mib := 2048
	if len(os.Args) > 1 {
		mib, _ = strconv.Atoi(os.Args[1])
	}
	memory := make([]uint64, mib<<17)
	for at := 0; at < len(memory); at += 512 {
		memory[at] = uint64(at)
	}
	fmt.Println("filled", os.Getpid())
	var ended atomic.Bool
	go func() {
		os.Stdin.Read(make([]byte, 1))
		ended.Store(true)
	}()
	random := uint64(1)
	for step := 0; step&0xffff != 0 || !ended.Load(); step++ {
		random = random*6364136223846793005 + 1442695040888963407
		memory[(random>>20)%uint64(len(memory))]++
	}
}
