/** Lookups in a large HashMap. */
import java.util.HashMap;
import java.util.Random;

public class Endless {
    public static void main(String[] arguments) {
        HashMap<Integer, Integer> table = new HashMap<>();
        Random source = new Random(1);
        int[] keys = new int[4000000];
        for (int i = 0; i < keys.length; i++) {
            keys[i] = source.nextInt();
            table.put(keys[i], i);
        }
        long sum = 0;
        for (long i = 1;; i++) {
            sum += table.get(keys[(int) (i * 7919L % keys.length)]);
            if (i % 200000 == 0) System.out.println("+".repeat(sum == -1 ? 2 : 1));
        }
    }
}
