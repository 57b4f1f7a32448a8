# SPDX-License-Identifier: GPL-2.0-only
#
# What the machine of kernel/selftests said, as lines "MODE ROUND TEST CASE RESULT", separated by tabs.
# TEST is a program with its arguments; CASE is one of the cases that it counts by TAP, or empty: then RESULT
# is by its exit status. Variables: mode, round.

# What comes after the number of a case, without what differs between runs: addresses, times, sizes.
function name_of(line) {
    sub(/^(not )?ok [0-9]* *-? */, "", line)
    sub(/ *# *(SKIP|XFAIL).*$/, "", line)
    gsub(/0x[0-9a-f]+/, "0x", line)
    gsub(/[0-9]+\.[0-9]+/, "N", line)
    gsub(/[\t"\\]/, " ", line)
    return line
}

function say(name, result) {
    printf "%s\t%s\t%s\t%s\t%s\n", mode, round, test, name, result
}

{ sub(/\r$/, "") }
/^@mm begin / { test = substr($0, 11); delete seen; next }
/^@mm end / {
    say("", $3 == 0 ? "pass" : $3 == 4 ? "skip" : $3 == 124 || $3 == 137 ? "time out" : "fail")
    test = ""
    next
}
!test { next }
/^\| (not )?ok / {
    line = substr($0, 3)
    result = line ~ /# *(SKIP|XFAIL)/ ? "skip" : line ~ /^ok/ ? "pass" : "fail"
    name = name_of(line)
    # Some have several cases of the same name.
    if (seen[name]++)
        name = name " (" seen[name] ")"
    say(name, result)
}
