// A heap that grows, gives most of itself back, and grows again near its limit. usage: heap.js MIB KEEP_PERCENT IDLE_SECONDS AGAIN_MIB
"use strict";
const words = process.argv.slice(2).map(Number);
const rest = (milliseconds) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);

function mark(name) {
    require("fs").writeSync(1, `mark ${name}\n`);
    rest(300);
}

function fill(bytes) {
    const objects = [];
    for (let used = 0; used < bytes; ) {
        const object = new Array(8 << Math.floor(Math.random() * 11)).fill(objects.length + 0.5);
        used += object.length * 8;
        objects.push(object);
    }
    return objects;
}

function check(objects) {
    objects.forEach((object, number) => {
        for (let at = 0; object && at < object.length; at += 7)
            if (object[at] !== number + 0.5) {
                console.log("wrong contents");
                process.exit(4);
            }
    });
}

const objects = fill(words[0] * 1048576);
mark("filled");
for (const end = Date.now() + 2000; Date.now() < end; ) check(objects);
for (let number = 0; number < objects.length; number++) if (Math.random() * 100 >= words[1]) objects[number] = null;
if (global.gc) global.gc();
mark("freed");
for (const end = Date.now() + words[2] * 1000; Date.now() < end; ) {
    check(objects);
    rest(20);
}
if (global.gc) global.gc();
mark("idled");
const more = fill(words[3] * 1048576);
mark("grown");
check(objects);
check(more);
console.log("ended well");
