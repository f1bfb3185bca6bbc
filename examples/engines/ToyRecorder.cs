// Records random games of a toy: 12 stones, take 1 to 3, who takes the last one wins 1 point.
//     mcs ToyRecorder.cs MovelistWriter.cs -out:ToyRecorder.exe && mono ToyRecorder.exe games.jsonl 100
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Threading;

public static class ToyRecorder
{
    public static void Main(string[] args)
    {
        // A country that writes a comma for the point must not change a recording.
        Thread.CurrentThread.CurrentCulture = new CultureInfo("de-DE");
        string path = args.Length > 0 ? args[0] : "games.jsonl";
        int numGames = args.Length > 1 ? int.Parse(args[1], CultureInfo.InvariantCulture) : 100;
        var random = new Random(7);
        using (var writer = new Movelist.Writer(path, "twelve_stones", new[] { 13 }))
        {
            for (int game = 0; game < numGames; game++)
            {
                writer.Begin(new[] { Movelist.Player.Policy(3), Movelist.Player.Human });
                int stones = 12, player = 0;
                while (stones > 0)
                {
                    var state = new float[13];
                    state[stones] = 0.1f;  // no finite binary fraction: it has to come back the same
                    var actions = new List<ulong>();
                    for (int take = 1; take <= 3 && take <= stones; take++) actions.Add((1UL << 63) + (ulong)take);
                    int chosen = random.Next(actions.Count);
                    writer.Step(player, state, actions, chosen, 0.0, -Math.Log(actions.Count));
                    stones -= chosen + 1;
                    player = 1 - player;
                }
                double first = player == 1 ? 1.0 : -1.0;  // the one who is not to move took the last stone
                writer.End(new[] { first, -first });
            }
        }
        Console.WriteLine("wrote " + numGames + " games to " + path);
    }
}
