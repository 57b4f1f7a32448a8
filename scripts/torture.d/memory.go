// Goroutines on several threads whose stacks grow and move, maps, slices and a garbage collector that is run all the time; every
// value is checked. Go's runtime brings its own threads, its own signals (preemption by SIGURG) and its own memory.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func deep(depth int, seed uint64) uint64 {
	var frame [32]uint64
	for i := range frame {
		frame[i] = mix(seed + uint64(i))
	}
	if depth > 0 {
		deep(depth-1, seed+1)
	}
	for i := range frame {
		if frame[i] != mix(seed+uint64(i)) {
			return 1
		}
	}
	return 0
}

func main() {
	seconds, err := strconv.ParseFloat(os.Getenv("TORTURE_SECONDS"), 64)
	if err != nil {
		seconds = 2
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var odd, rounds atomic.Int64
	var group sync.WaitGroup
	for worker := uint64(1); worker <= 6; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			held := map[uint64][]uint64{}
			for at := worker << 40; time.Now().Before(end); at++ {
				slice := make([]uint64, 200+mix(at)%2000)
				for i := range slice {
					slice[i] = mix(at + uint64(i))
				}
				held[at] = slice
				if old, is := held[at-500]; is {
					for i := range old {
						if old[i] != mix(at-500+uint64(i)) {
							odd.Add(1)
							break
						}
					}
					delete(held, at-500)
				}
				if at%50 == 0 {
					odd.Add(int64(deep(200, at)))
				}
				rounds.Add(1)
				if at%20 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		}()
	}
	for time.Now().Before(end) {
		runtime.GC()
		time.Sleep(20 * time.Millisecond)
	}
	group.Wait()
	fmt.Println("#", rounds.Load(), "rounds")
	if odd.Load() != 0 {
		fmt.Println("odd:", odd.Load(), "values were lost")
		os.Exit(1)
	}
	fmt.Println("nothing odd")
}
