-- Walks over a large tree: tree.lua PASSES. A line after the filling, and after each pass.
local function tree(d) if d == 0 then return {} end return { tree(d - 1), tree(d - 1) } end
local function check(t) if t[1] then return 1 + check(t[1]) + check(t[2]) end return 1 end
local keep = tree(20)
local function say(what) print(what) io.stdout:flush() end
say("filled")
for _ = 1, tonumber(arg[1]) do
  local sum = 0
  for _ = 1, 6 do sum = sum + check(keep) end
  say(sum)
end
