// Lookups in a large Map.
const fs = require("fs");
const table = new Map(), keys = [];
for (let i = 0, x = 1; i < 3000000; i++) {
  x = (x * 48271) % 2147483647;
  table.set(x, { value: i });
  keys.push(x);
}
for (let i = 1, sum = 0; ; i++) {
  sum += table.get(keys[(i * 7919) % keys.length]).value;
  if (i % 200000 === 0) fs.writeSync(1, "+\n");
}
