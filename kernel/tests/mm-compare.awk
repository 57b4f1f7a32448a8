# SPDX-License-Identifier: GPL-2.0-only
#
# Compares the lines of mm-selftests.awk. With list=1 it prints the tests of which something did not come out
# as in the unpatched kernel; else JSON, with the variables release and patches. A case that came out in more
# than one way in the rounds of one kernel is unstable; one differs if no outcome is common to both kernels.

{
    key = $3 "\t" $4
    if (!(key in number)) {
        number[key] = ++keys
        name[keys] = key
    }
    if (index(outcome[$1, key] ",", $5 ",") == 0)
        outcome[$1, key] = outcome[$1, key] (outcome[$1, key] ? "," : "") $5
    count[$1, $2, $5]++
    if (!(($1, key) in first))
        first[$1, key] = $5
}

function common(a, b, parts, n, i) {
    n = split(a, parts, ",")
    for (i = 1; i <= n; i++)
        if (index("," b ",", "," parts[i] ","))
            return 1
    return 0
}

function text(value) {
    return value == "" ? "not run" : value
}

END {
    split("unpatched off spread", modes, " ")
    for (i = 1; i <= keys; i++) {
        key = name[i]
        plain = text(outcome["unpatched", key])
        bad = 0
        for (m = 2; m <= 3; m++)
            if (!common(plain, text(outcome[modes[m], key])))
                bad = 1
        unstable = (outcome["unpatched", key] outcome["off", key] outcome["spread", key]) ~ /,/
        split(key, part, "\t")
        if (bad && list && !(part[1] in said)) {
            said[part[1]]
            print part[1]
        }
        if (bad) differ++
        if (bad || unstable)
            lines = lines sprintf("%s\n    {\"test\": \"%s\", \"case\": \"%s\", \"unpatched\": \"%s\", \"off\": \"%s\", \"spread\": \"%s\", \"differs\": %s}",
                lines ? "," : "", part[1], part[2], plain, text(outcome["off", key]),
                text(outcome["spread", key]), bad ? "true" : "false")
        if (part[2] == "")
            tests = tests sprintf("%s\n    {\"test\": \"%s\", \"unpatched\": \"%s\", \"off\": \"%s\", \"spread\": \"%s\"}",
                tests ? "," : "", part[1], plain, text(outcome["off", key]), text(outcome["spread", key]))
    }
    if (list)
        exit
    printf "{\n  \"what\": \"tools/testing/selftests/mm, built once, in three kernels of one configuration (kernel/selftests)\",\n"
    printf "  \"linux\": \"%s\",\n  \"patches_sha256\": \"%s\",\n  \"cases\": %d,\n  \"differ\": %d,\n", release, patches, keys, differ
    for (m = 1; m <= 3; m++)
        printf "  \"%s\": {\"pass\": %d, \"fail\": %d, \"skip\": %d, \"time_out\": %d},\n", modes[m],
            count[modes[m], 1, "pass"], count[modes[m], 1, "fail"], count[modes[m], 1, "skip"],
            count[modes[m], 1, "time out"]
    printf "  \"programs\": [%s\n  ],\n  \"different_or_unstable\": [%s\n  ]\n}\n", tests, lines
}
