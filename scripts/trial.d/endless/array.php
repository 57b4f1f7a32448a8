<?php
// Lookups in a large array.
ini_set('memory_limit', '-1');
$table = []; $keys = []; $x = 1;
for ($i = 0; $i < 3000000; $i++) { $x = ($x * 48271) % 2147483647; $table[$x] = $i; $keys[] = $x; }
$sum = 0; $count = count($keys);
for ($i = 1; ; $i++) {
  $sum += $table[$keys[($i * 7919) % $count]];
  if ($i % 200000 == 0) { $sum = 0; echo "+\n"; }
}
