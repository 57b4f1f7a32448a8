import java.util.HashMap;
import java.util.Random;

/**
 * Replaces random values of a map and checks what was there: garbage all the time, and a heap that moves.
 *
 * <pre>java Objects.java SECONDS</pre>
 *
 * Prints "done N" for every N values replaced. Exit status 1 as soon as one is not what was stored.
 */
public final class Objects {
    private static final int KEYS = 200_000;
    private static final int ROUND = 200_000;

    /** What belongs to a key, of a length that depends on both. */
    private static byte[] value(int key, int version) {
        byte[] value = new byte[64 + Math.floorMod(key * 31 + version * 7, 900)];
        long state = ((long) key << 32 | version & 0xffffffffL) * 0x9e3779b97f4a7c15L;
        for (int i = 0; i < value.length; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            value[i] = (byte) (state >>> 56);
        }
        return value;
    }

    private static void check(HashMap<Integer, byte[]> map, int key, int version) {
        if (!java.util.Arrays.equals(map.get(key), value(key, version))) {
            System.err.println("Objects: key " + key + " does not hold version " + version);
            System.exit(1);
        }
    }

    public static void main(String[] arguments) {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000L;
        HashMap<Integer, byte[]> map = new HashMap<>();
        int[] versions = new int[KEYS];
        for (int key = 0; key < KEYS; key++) {
            map.put(key, value(key, 0));
        }
        Random random = new Random(1);
        while (System.nanoTime() < end) {
            for (int i = 0; i < ROUND; i++) {
                int key = random.nextInt(KEYS);
                check(map, key, versions[key]);
                map.put(key, value(key, ++versions[key]));
            }
            System.out.println("done " + ROUND);
        }
        for (int key = 0; key < KEYS; key++) {
            check(map, key, versions[key]);
        }
    }
}
