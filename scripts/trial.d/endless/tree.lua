-- Walks through a large tree.
io.stdout:setvbuf("no")
local function tree(depth) if depth == 0 then return {} end return { tree(depth - 1), tree(depth - 1) } end
local function count(node) if node[1] then return 1 + count(node[1]) + count(node[2]) end return 1 end
local whole, parts = tree(20), {}
local function collect(node, depth) if depth == 0 then parts[#parts + 1] = node else collect(node[1], depth - 1) collect(node[2], depth - 1) end end
collect(whole, 6)
while true do
  for i = 1, #parts do count(parts[i * 29 % #parts + 1]) print("+") end
end
