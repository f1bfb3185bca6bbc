// Drives examples/engines/MovelistPolicy.cs for tests/play/test_readers.py, with the commands and lines of
// policy_check.cpp. It runs in a language that writes 1,5 for one and a half.
using System;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Text;
using System.Threading;

static class PolicyCheck
{
    static int Main(string[] words)
    {
        Thread.CurrentThread.CurrentCulture = new CultureInfo("de-DE");
        Console.OutputEncoding = new UTF8Encoding(false);
        if (words.Length == 2 && words[0] == "choose") return Choose(words[1]);
        if (words.Length == 4 && words[0] == "load") return Load(words[1], words[2], words[3]);
        if (words.Length == 3 && words[0] == "fuzz") return Fuzz(words[1], int.Parse(words[2]));
        if (words.Length == 4 && words[0] == "time") return Time(words[1], int.Parse(words[2]), int.Parse(words[3]));
        return 2;
    }

    static int Time(string path, int count, int rounds)
    {
        Movelist.Policy policy = Movelist.Policy.LoadFile(path);
        var random = new Random(1);
        var state = new float[policy.Info.StateSize];
        var ids = new long[count];
        var eight = new byte[8];
        var microseconds = new[] { new double[rounds], new double[rounds] };
        for (int round = 0; round < rounds; ++round)
        {
            for (int s = 0; s < state.Length; ++s) state[s] = random.Next(2);
            for (int a = 0; a < count; ++a)
            {
                random.NextBytes(eight);
                ids[a] = BitConverter.ToInt64(eight, 0);
            }
            foreach (double[] times in microseconds) // the second time every id is known
            {
                Stopwatch watch = Stopwatch.StartNew();
                policy.Choose(state, ids, count, new Movelist.PlayOptions());
                times[round] = watch.Elapsed.TotalMilliseconds * 1000.0;
            }
        }
        foreach (double[] times in microseconds) Array.Sort(times);
        Console.Out.WriteLine(microseconds[0][rounds / 2].ToString("F2", CultureInfo.InvariantCulture) + " " +
                              microseconds[1][rounds / 2].ToString("F2", CultureInfo.InvariantCulture));
        return 0;
    }

    static ulong[] Unsigned(long[] ids)
    {
        var unsigned = new ulong[ids.Length];
        for (int a = 0; a < ids.Length; ++a) unsigned[a] = unchecked((ulong)ids[a]);
        return unsigned;
    }

    static int Choose(string path)
    {
        Movelist.Policy policy = Movelist.Policy.LoadFile(path);
        for (string line = Console.In.ReadLine(); line != null; line = Console.In.ReadLine())
        {
            string[] words = line.Split(' ');
            var options = new Movelist.PlayOptions
            {
                Sample = words[0] == "0",
                Temperature = float.Parse(words[1], CultureInfo.InvariantCulture),
                TopK = int.Parse(words[2]),
                Seed = ulong.Parse(words[3]),
                Turn = ulong.Parse(words[4]),
            };
            var ids = new long[int.Parse(words[5])];
            for (int a = 0; a < ids.Length; ++a) ids[a] = long.Parse(words[6 + a], CultureInfo.InvariantCulture);
            var state = new float[words.Length - 6 - ids.Length];
            for (int s = 0; s < state.Length; ++s)
                state[s] = float.Parse(words[6 + ids.Length + s], CultureInfo.InvariantCulture);
            try
            {
                Movelist.Choice choice = policy.Choose(state, Unsigned(ids), ids.Length, options);
                Movelist.Choice again = policy.Choose(state, ids, ids.Length, options);
                if (choice.Index != again.Index || choice.LogProb != again.LogProb) return 3;
                var text = new StringBuilder();
                text.Append(choice.Index).Append(' ').Append(choice.LogProb.ToString("R", CultureInfo.InvariantCulture));
                for (int a = 0; a < ids.Length; ++a)
                    text.Append(' ').Append(policy.Logit(a).ToString("R", CultureInfo.InvariantCulture));
                Console.Out.WriteLine(text.ToString());
            }
            catch (Movelist.PolicyException error)
            {
                Console.Out.WriteLine("error: " + error.Message);
            }
        }
        return 0;
    }

    static int Load(string path, string game, string layout)
    {
        try
        {
            Movelist.Policy.LoadFile(path, game == "" ? null : game, layout == "" ? null : layout);
        }
        catch (Movelist.PolicyException error)
        {
            Console.Out.WriteLine("error: " + error.Message);
            return 3;
        }
        Console.Out.WriteLine("good");
        return 0;
    }

    static int Fuzz(string path, int rounds)
    {
        byte[] whole = File.ReadAllBytes(path);
        int header = BitConverter.ToInt32(whole, 0), refused = 0, played = 0;
        var random = new Random(1);
        for (int round = 0; round < rounds; ++round)
        {
            var bytes = (byte[])whole.Clone();
            int kind = round % 4;
            if (kind == 0) Array.Resize(ref bytes, random.Next(whole.Length));
            if (kind == 1) bytes[random.Next(whole.Length)] ^= (byte)(1 << random.Next(8));
            if (kind >= 2)
                for (int n = random.Next(4); n >= 0; --n)
                    bytes[random.Next(8 + header)] = (byte)(kind == 2 ? random.Next(256) : '0' + random.Next(80));
            if (kind >= 2 || round % 8 == 0) Mend(bytes);
            try
            {
                Movelist.Policy policy = Movelist.Policy.Load(bytes);
                if (kind < 2) return 5;
                policy.Choose(new float[policy.Info.StateSize], new long[] { 0, 1, 2 }, 3, new Movelist.PlayOptions());
                ++played;
            }
            catch (Movelist.PolicyException)
            {
                ++refused;
            }
        }
        Console.Out.WriteLine("refused " + refused + " played " + played);
        return 0;
    }

    static void Mend(byte[] bytes)
    {
        if (bytes.Length < 4) return;
        uint crc = 0xFFFFFFFFu;
        for (int i = 0; i < bytes.Length - 4; ++i)
        {
            crc ^= bytes[i];
            for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) != 0u ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
        }
        for (int i = 0; i < 4; ++i) bytes[bytes.Length - 4 + i] = (byte)((crc ^ 0xFFFFFFFFu) >> (8 * i));
    }
}
