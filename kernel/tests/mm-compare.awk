# SPDX-License-Identifier: GPL-2.0-only
#
# Compares the lines of mm-selftests.awk or ltp.awk. `modes` is a list of the kernels, of which the first is
# compared with the others. With list=1 it prints the tests of which something did not come out as there; else
# JSON, with the variables what, release and patches. A case that came out in more than one way in the rounds of one
# kernel is unstable; one differs if no outcome is common to both kernels.

BEGIN { number_of_modes = split(modes, mode, " ") }

{
    key = $3 "\t" $4
    if (!(key in number)) {
        number[key] = ++keys
        name[keys] = key
    }
    if (index("," outcome[$1, key] ",", "," $5 ",") == 0)
        outcome[$1, key] = outcome[$1, key] (outcome[$1, key] ? "," : "") $5
    count[$1, $2, $5]++
}

function common(a, b, parts, n, i) {
    n = split(a, parts, ",")
    for (i = 1; i <= n; i++)
        if (index("," b ",", "," parts[i] ","))
            return 1
    return 0
}

# What came of it in kernel M.
function text(m, key, value) {
    value = outcome[mode[m], key]
    return value == "" ? "not run" : value
}

function texts(key, line, m) {
    for (m = 1; m <= number_of_modes; m++)
        line = line sprintf(", \"%s\": \"%s\"", mode[m], text(m, key))
    return line
}

END {
    for (i = 1; i <= keys; i++) {
        key = name[i]
        bad = unstable = 0
        for (m = 1; m <= number_of_modes; m++) {
            if (!common(text(1, key), text(m, key)))
                bad = 1
            if (text(m, key) ~ /,/)
                unstable = 1
        }
        split(key, part, "\t")
        if (bad && list && !(part[1] in said)) {
            said[part[1]]
            print part[1]
        }
        if (bad) differ++
        if (bad || unstable)
            lines = lines sprintf("%s\n    {\"test\": \"%s\", \"case\": \"%s\"%s, \"differs\": %s}",
                lines ? "," : "", part[1], part[2], texts(key), bad ? "true" : "false")
        if (part[2] == "")
            tests = tests sprintf("%s\n    {\"test\": \"%s\"%s}", tests ? "," : "", part[1], texts(key))
    }
    if (list)
        exit
    printf "{\n  \"what\": \"%s\",\n", what
    printf "  \"linux\": \"%s\",\n  \"patches_sha256\": \"%s\",\n  \"cases\": %d,\n  \"differ\": %d,\n", release, patches, keys, differ
    for (m = 1; m <= number_of_modes; m++)
        printf "  \"%s\": {\"pass\": %d, \"fail\": %d, \"skip\": %d, \"time_out\": %d},\n", mode[m],
            count[mode[m], 1, "pass"], count[mode[m], 1, "fail"], count[mode[m], 1, "skip"],
            count[mode[m], 1, "time out"]
    printf "  \"programs\": [%s\n  ],\n  \"different_or_unstable\": [%s\n  ]\n}\n", tests, lines
}
