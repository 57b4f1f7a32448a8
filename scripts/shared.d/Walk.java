import java.util.Scanner;

// Fills so many MiB of the heap with arrays of 1 MiB and says "ready". For each line of its input, a number of seconds, reads them at
// random for that long, one read depending on the one before, and says how many reads that were per second. Ends with its input.
public class Walk {
    static final int LONGS = 1 << 17, READS = 10000;

    static long walk(long[][] arrays, long state) {
        for (int i = 0; i < READS; i++) {
            long mixed = (state + i) * 0x9E3779B97F4A7C15L;
            long[] array = arrays[(int) ((mixed >>> 33) % arrays.length)];
            state += array[(int) ((mixed & 0x7fffffff) % array.length)];
        }
        return state;
    }

    public static void main(String[] words) {
        int mib = Integer.parseInt(words[0]);
        long[][] arrays = new long[mib][];
        long state = 88172645463325252L;
        for (int at = 0; at < mib; at++) {
            arrays[at] = new long[LONGS - 2];
            for (int i = 0; i < arrays[at].length; i++) {
                state ^= state << 13;
                state ^= state >>> 7;
                state ^= state << 17;
                arrays[at][i] = state;
            }
        }
        System.out.println("ready " + ProcessHandle.current().pid());
        Scanner in = new Scanner(System.in);
        long sum = 0;
        while (in.hasNextDouble()) {
            double seconds = in.nextDouble();
            long reads = 0, begun = System.nanoTime();
            while (System.nanoTime() - begun < seconds * 1e9) {
                sum = walk(arrays, sum + reads);
                reads += READS;
            }
            System.out.println(reads / ((System.nanoTime() - begun) / 1e9) + (sum == 42 ? " " : ""));
        }
    }
}
