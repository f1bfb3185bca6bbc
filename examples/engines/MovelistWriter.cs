// Writes episodes for movelist (docs/episode_format.md), as .jsonl. One file for Unity and any other C#: no reflection,
// no packages, numbers in the invariant format, so it runs under IL2CPP and in every country.
//
//     using (var writer = new Movelist.Writer("games.jsonl", "my_game", new[] { stateWidth }))
//     {
//         writer.Begin(new[] { Movelist.Player.Policy(120), Movelist.Player.Human });   // who moves each seat
//         writer.Step(seat, state, actionIds, chosen, reward, logProb);                 // once a decision
//         writer.End(new[] { 1.0, -1.0 });                                              // the final score of each seat
//     }
//
// reward is what this seat received since its own last step. An episode is written as one line when it ends, so a crash
// costs the running episode only. Not for several threads at once: one writer, and one file, for each.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Text;

namespace Movelist
{
    /// <summary>Who moves a seat.</summary>
    public struct Player
    {
        public string Controller;   // "policy", "human" or "other"
        public long PolicyVersion;  // the number of the policy file; -1 for none

        public static Player Human { get { return new Player { Controller = "human", PolicyVersion = -1 }; } }
        public static Player Other { get { return new Player { Controller = "other", PolicyVersion = -1 }; } }

        public static Player Policy(long version)
        {
            return new Player { Controller = "policy", PolicyVersion = version };
        }
    }

    public sealed class Writer : IDisposable
    {
        public const double NoLogProb = double.PositiveInfinity;

        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false);  // without a byte order mark
        private readonly FileStream file;
        private readonly string game;
        private readonly int width = 1;
        private readonly StringBuilder players = new StringBuilder();
        private readonly StringBuilder steps = new StringBuilder();
        private readonly StringBuilder text = new StringBuilder();  // of the present step
        private int numPlayers;
        private long episode;

        /// <summary>Adds to the file if it is there. stateDtype is float32, float16 or uint8.</summary>
        public Writer(string path, string game, int[] stateShape, string stateDtype = "float32")
        {
            this.game = Escaped(game);
            var shape = new StringBuilder();
            foreach (int size in stateShape)
            {
                width *= size;
                if (shape.Length > 0) shape.Append(',');
                shape.Append(size.ToString(CultureInfo.InvariantCulture));
            }
            // Others may read and delete while this program writes.
            file = new FileStream(path, FileMode.Append, FileAccess.Write, FileShare.ReadWrite | FileShare.Delete);
            if (file.Position > 0)
                file.WriteByte((byte)'\n');  // what a crash may have left half written ends here; a blank line does no harm
            PutLine("{\"format\":\"movelist/1\",\"state_shape\":[" + shape + "],\"state_dtype\":\"" + stateDtype + "\"");
        }

        /// <summary>Starts an episode; one that was not ended is forgotten.</summary>
        public void Begin(IList<Player> seats)
        {
            steps.Length = 0;
            players.Length = 0;
            numPlayers = seats.Count;
            foreach (Player seat in seats)
            {
                players.Append(players.Length == 0 ? "{\"controller\":\"" : ",{\"controller\":\"").Append(seat.Controller).Append('"');
                if (seat.PolicyVersion >= 0)
                    players.Append(",\"policy_version\":").Append(seat.PolicyVersion.ToString(CultureInfo.InvariantCulture));
                players.Append('}');
            }
        }

        /// <summary>One decision. Ids may use all 64 bits and are distinct; chosen is an index into them.</summary>
        public void Step(int player, IList<float> state, IList<ulong> actions, int chosen, double reward,
                         double logProb = NoLogProb)
        {
            Put(player, state, actions.Count, a => actions[a].ToString(CultureInfo.InvariantCulture), chosen, reward,
                logProb);
        }

        /// <summary>The same for ids that are kept as signed numbers, as MovelistPolicy.cs takes them.</summary>
        public void Step(int player, IList<float> state, IList<long> actions, int chosen, double reward,
                         double logProb = NoLogProb)
        {
            Put(player, state, actions.Count, a => actions[a].ToString(CultureInfo.InvariantCulture), chosen, reward,
                logProb);
        }

        void Put(int player, IList<float> state, int count, Func<int, string> action, int chosen, double reward,
                 double logProb)
        {
            Require(player >= 0 && player < numPlayers, "no such player");
            Require(state.Count == width, "the state has another width");
            Require(chosen >= 0 && chosen < count, "chosen is outside the list");
            text.Length = 0;
            text.Append(steps.Length == 0 ? "{\"player\":" : ",{\"player\":");
            text.Append(player.ToString(CultureInfo.InvariantCulture)).Append(",\"state\":[");
            PutNumbers(text, state);
            text.Append("],\"actions\":[");
            for (int i = 0; i < count; i++)
            {
                if (i > 0) text.Append(',');
                text.Append(action(i));
            }
            text.Append("],\"chosen\":").Append(chosen.ToString(CultureInfo.InvariantCulture)).Append(",\"reward\":");
            PutNumber(text, reward);
            if (!double.IsPositiveInfinity(logProb))
            {
                text.Append(",\"log_prob\":");
                PutNumber(text, logProb);
            }
            steps.Append(text).Append('}');  // only now: a step with a number that is none leaves nothing behind
        }

        /// <summary>Ends the episode and writes it.</summary>
        public void End(IList<double> returns)
        {
            Finish(returns, "terminated", null);
        }

        /// <summary>Ends an episode that was cut off; finalStates is what each seat sees there.</summary>
        public void Truncate(IList<double> returns, IList<float[]> finalStates)
        {
            Require(finalStates.Count == numPlayers, "there is not one final state for each seat");
            Finish(returns, "truncated", finalStates);
        }

        public void Dispose()
        {
            file.Dispose();
        }

        private void Finish(IList<double> returns, string end, IList<float[]> finalStates)
        {
            Require(returns.Count == numPlayers, "there is not one return for each seat");
            var line = new StringBuilder("{\"format\":\"movelist/1\",\"game\":\"");
            line.Append(game).Append("\",\"episode\":").Append(episode.ToString(CultureInfo.InvariantCulture));
            line.Append(",\"players\":[").Append(players).Append("],\"steps\":[").Append(steps).Append("],\"returns\":[");
            for (int seat = 0; seat < returns.Count; seat++)
            {
                if (seat > 0) line.Append(',');
                PutNumber(line, returns[seat]);
            }
            line.Append("],\"end\":\"").Append(end).Append('"');
            if (finalStates != null)
            {
                line.Append(",\"final_states\":[");
                for (int seat = 0; seat < finalStates.Count; seat++)
                {
                    Require(finalStates[seat].Length == width, "a final state has another width");
                    line.Append(seat > 0 ? ",[" : "[");
                    PutNumbers(line, finalStates[seat]);
                    line.Append(']');
                }
                line.Append(']');
            }
            PutLine(line.ToString());
            steps.Length = 0;
            episode++;
        }

        // head is a JSON object without its closing brace; the checksum covers it.
        private void PutLine(string head)
        {
            byte[] bytes = Utf8.GetBytes(head);
            string crc = Crc32(bytes).ToString("x8", CultureInfo.InvariantCulture);
            byte[] tail = Utf8.GetBytes(",\"crc32\":\"" + crc + "\"}\n");
            var line = new byte[bytes.Length + tail.Length];
            Buffer.BlockCopy(bytes, 0, line, 0, bytes.Length);
            Buffer.BlockCopy(tail, 0, line, bytes.Length, tail.Length);
            file.Write(line, 0, line.Length);  // at once: a reader never sees two halves of different lines
            file.Flush();
        }

        private static void PutNumbers(StringBuilder text, IList<float> values)
        {
            for (int i = 0; i < values.Count; i++)
            {
                if (i > 0) text.Append(',');
                Require(!float.IsNaN(values[i]) && !float.IsInfinity(values[i]), "NaN and infinity are no numbers of JSON");
                text.Append(values[i].ToString("G9", CultureInfo.InvariantCulture));  // 9 digits bring a float back
            }
        }

        private static void PutNumber(StringBuilder text, double value)
        {
            Require(!double.IsNaN(value) && !double.IsInfinity(value), "NaN and infinity are no numbers of JSON");
            text.Append(value.ToString("G17", CultureInfo.InvariantCulture));
        }

        private static string Escaped(string text)
        {
            foreach (char letter in text) Require(letter >= ' ', "the game's name holds a control character");
            return text.Replace("\\", "\\\\").Replace("\"", "\\\"");
        }

        private static uint Crc32(byte[] bytes)
        {
            uint crc = 0xFFFFFFFFu;
            foreach (byte value in bytes)
            {
                crc ^= value;
                for (int bit = 0; bit < 8; bit++) crc = (crc & 1u) != 0 ? (crc >> 1) ^ 0xEDB88320u : crc >> 1;
            }
            return ~crc;
        }

        private static void Require(bool good, string what)
        {
            if (!good) throw new ArgumentException("movelist: " + what);
        }
    }
}
