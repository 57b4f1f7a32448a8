// A heap that grows, gives most of itself back, and grows again near its limit. usage: heap MIB KEEP_PERCENT IDLE_SECONDS AGAIN_MIB
package main

import (
	"fmt"
	"math/rand"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

func mark(name string) {
	fmt.Println("mark", name)
	time.Sleep(300 * time.Millisecond)
}

func fill(bytes int) [][]byte {
	var objects [][]byte
	for used := 0; used < bytes; {
		object := make([]byte, 64<<rand.Intn(11))
		for at := range object {
			object[at] = byte(len(objects))
		}
		used += len(object)
		objects = append(objects, object)
	}
	return objects
}

func check(objects [][]byte) {
	for number, object := range objects {
		for at := 0; at < len(object); at += 61 {
			if object[at] != byte(number) {
				fmt.Println("wrong contents")
				os.Exit(4)
			}
		}
	}
}

func main() {
	var words [4]int
	for at := range words {
		words[at], _ = strconv.Atoi(os.Args[at+1])
	}
	objects := fill(words[0] << 20)
	mark("filled")
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		check(objects)
	}
	for number := range objects {
		if rand.Intn(100) >= words[1] {
			objects[number] = nil
		}
	}
	debug.FreeOSMemory()
	mark("freed")
	for end := time.Now().Add(time.Duration(words[2]) * time.Second); time.Now().Before(end); {
		check(objects)
		time.Sleep(20 * time.Millisecond)
	}
	mark("idled")
	more := fill(words[3] << 20)
	mark("grown")
	check(objects)
	check(more)
	fmt.Println("ended well")
}
