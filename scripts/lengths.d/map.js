// Lookups in a large Map: map.js PASSES. A line after the filling, and after each pass.
const fs = require('fs');
const say = what => fs.writeSync(1, `${what}\n`);
const map = new Map(), keys = [];
let x = 1;
for (let i = 0; i < 3000000; i++) { x = (x * 48271) % 2147483647; map.set(x, { v: i }); keys.push(x); }
say('filled');
let sum = 0;
for (let pass = 0; pass < Number(process.argv[2]); pass++) {
  for (let i = 0; i < 1800000; i++) sum += map.get(keys[((pass * 1800000 + i) * 7919) % keys.length]).v;
  say(sum);
}
